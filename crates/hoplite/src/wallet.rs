//! A client's private tokens: kept ahead in a file, one spent for each connection to a relay that wants them, and asked for anew before they run out.
//! The issuer is asked directly, as an authority is: it knows the account anyway, and learns nothing of when and where its tokens are spent. When it
//! is asked has nothing to do with the connections of that moment.

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use clap::Args;
use hoplite_crypto::{ALPN_HTTP1, Token, Trust, client_tls};
use hoplite_masque::TokenSource;
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms, direct::Direct};
use hoplite_tokens::{KeyDirectory, KeyError, PendingToken, Stock, challenge_digest};
use hoplite_wire::{
    Host, Target,
    privacy_pass::{
        BATCH_REQUEST_TYPE, PrivateToken, TokenChallenge, decode_batch_response, encode_batch,
    },
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tracing::warn;
use zeroize::Zeroizing;

use crate::{
    client::random,
    config::client::{self, Issuer},
    process, say,
    say::Failure,
};

/// What `hoplite token` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The client's TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The relay of the file that it is for.
    #[arg(long, value_name = "NAME")]
    relay: String,
}

/// Takes a token out of the stock and prints it: what a browser or curl shows as the password of Basic.
pub(crate) fn print(options: &Options, json: bool) -> Result<(), Failure> {
    let client = client::load(&options.config)?;
    let name = &options.relay;
    let failed = |why: String, remedy: &str| {
        Failure::new(format!("taking a token for relay {name}"), why, remedy)
    };
    let mut relays = client.config.relay.iter();
    let relay = relays.find(|relay| relay.name == *name);
    let relay = relay
        .filter(|relay| relay.issuer.is_some())
        .ok_or_else(|| {
            let why = "no [[relay]] of the file has this name and an `issuer`".into();
            failed(why, "correct the name, or add the issuer")
        })?;
    process::current_thread_runtime()?.block_on(async {
        let wallets = Wallets::open(&client.config, &Direct::for_tunnels()).await?;
        let taken = wallets.source(relay).map(|source| source.take());
        let token = taken
            .transpose()
            .map_err(|error| failed(error.to_string(), "ask the issuer's operator for more"))?;
        let text = Zeroizing::new(token.map(|token| token.to_text()).unwrap_or_default());
        if json {
            say::json(&json!({"relay": name, "token": *text}))
        } else {
            say::answer(&*text)
        }
    })
}

/// Where an issuer publishes its keys: RFC 9578 §4.
const DIRECTORY: &str = "/.well-known/private-token-issuer-directory";
/// How long an issuer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a directory of keys, and of an answer to a batch, beyond which nothing is read.
const MOST_BYTES: usize = 64 << 10;
/// How often an issuer is asked what it failed to give, at first; and the longest pause.
const RETRY: Duration = Duration::from_secs(30);
const LONGEST_RETRY: Duration = Duration::from_secs(3600);
/// More are asked for within so many seconds of when they are wanted, so that the issuer does not see when connections are made.
const APART: u64 = 60;

/// The stocks of all issuers of a client's file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wallets(Vec<Arc<Wallet>>);

/// The stock of one issuer.
struct Wallet {
    issuer: Issuer,
    /// What its tokens are for, by name.
    origins: Vec<(String, [u8; 32])>,
    stock: Mutex<Stock>,
    /// Told when half of what is kept for a name is spent.
    low: Notify,
    underlay: Direct,
}

/// The tokens for one relay.
#[derive(Debug)]
struct RelayTokens {
    wallet: Arc<Wallet>,
    relay: String,
    challenge: [u8; 32],
}

/// Why an issuer gave no tokens.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("it cannot be reached ({0})")]
    Unreachable(#[from] Error),
    #[error("no TLS with it ({0}): check its address and its pin")]
    Tls(#[from] std::io::Error),
    #[error("its answer is no HTTP ({0})")]
    Http(#[from] hyper::Error),
    #[error("it answered {0}{1}")]
    Status(StatusCode, String),
    #[error("its answer is too large, or none that was asked for")]
    Unfit,
    #[error("its directory of keys: {0}")]
    Keys(#[from] hoplite_tokens::KeyDirectoryError),
    #[error("it has no key in use now")]
    NoKey,
    #[error("{0}")]
    Key(#[from] KeyError),
    #[error("{0}")]
    Stock(#[from] hoplite_tokens::StockError),
    #[error("it has not answered in time")]
    TimedOut,
}

impl Wallets {
    /// Opens the stock of each issuer that a relay of the file names, asks for what is missing, and goes on doing so.
    pub(crate) async fn open(config: &client::Config, underlay: &Direct) -> Result<Self, Failure> {
        let mut wallets = Vec::new();
        for issuer in &config.issuer {
            let named = |relay: &&client::Relay| relay.issuer.as_deref() == Some(&issuer.name);
            let origins: BTreeSet<&str> = config.relay.iter().filter(named).map(origin).collect();
            if origins.is_empty() {
                continue;
            }
            let wallet = Arc::new(Wallet::open(issuer, &origins, underlay)?);
            if let Err(error) = wallet.fill().await {
                warn!(issuer = issuer.name, "no new tokens for now: {error}");
            }
            let kept = Arc::clone(&wallet);
            tokio::spawn(async move { kept.keep_full().await });
            wallets.push(wallet);
        }
        Ok(Self(wallets))
    }

    /// Where tokens for this relay come from, if it wants such.
    pub(crate) fn source(&self, relay: &client::Relay) -> Option<Arc<dyn TokenSource>> {
        let named = relay.issuer.as_deref()?;
        let wallet = self.0.iter().find(|it| it.issuer.name == named)?;
        let mut origins = wallet.origins.iter();
        let (_, challenge) = origins.find(|(name, _)| name == origin(relay))?;
        Some(Arc::new(RelayTokens {
            wallet: Arc::clone(wallet),
            relay: relay.name.clone(),
            challenge: *challenge,
        }))
    }
}

/// The name that a relay takes tokens for.
fn origin(relay: &client::Relay) -> &str {
    relay.origin.as_deref().unwrap_or(&relay.name)
}

impl TokenSource for RelayTokens {
    fn take(&self) -> Result<PrivateToken, Error> {
        let mut stock = self.wallet.stock.lock();
        let (taken, left) = (stock.take(&self.challenge), stock.count(&self.challenge));
        drop(stock);
        if left.is_ok_and(|left| left <= self.wallet.issuer.keep / 2) {
            self.wallet.low.notify_one();
        }
        let doing = |what: &str| format!("showing relay {} a token: {what}", self.relay);
        let forbidden = |what: &str| {
            Error::new(ErrorKind::Forbidden, doing(what)).because(Reason::Authentication)
        };
        match taken {
            Ok(Some(token)) => Ok(token),
            Ok(None) => Err(forbidden(
                "they have run out, and the issuer has given no more",
            )),
            Err(error) => Err(forbidden("their file cannot be used").caused_by(error)),
        }
    }
}

impl Wallet {
    fn open(issuer: &Issuer, origins: &BTreeSet<&str>, underlay: &Direct) -> Result<Self, Failure> {
        let stock = Stock::open(&issuer.stock).map_err(|error| {
            let doing = format!("opening the tokens in {}", issuer.stock.display());
            Failure::new(doing, error, "then start it again")
        })?;
        let digest = |name: &&str| {
            let challenge = TokenChallenge {
                issuer: issuer.name.clone(),
                redemption_context: None,
                origin_info: (*name).to_owned(),
            };
            let digest = challenge_digest(&challenge).map_err(|error| {
                let doing = format!("asking {} for tokens for {name}", issuer.name);
                Failure::new(doing, error, "correct the names in the file")
            })?;
            Ok(((*name).to_owned(), digest))
        };
        Ok(Self {
            issuer: issuer.clone(),
            origins: origins.iter().map(digest).collect::<Result<_, Failure>>()?,
            stock: Mutex::new(stock),
            low: Notify::new(),
            underlay: underlay.clone(),
        })
    }

    /// Asks for more when tokens run low, and again when the issuer failed; never ends.
    async fn keep_full(&self) {
        let (mut random, mut pause) = (random(), RETRY);
        loop {
            self.low.notified().await;
            sleep(Duration::from_secs(random(APART))).await;
            while let Err(error) = self.fill().await {
                warn!(issuer = self.issuer.name, "no new tokens for now: {error}");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_RETRY);
            }
            pause = RETRY;
        }
    }

    /// Asks for what is missing of each name.
    async fn fill(&self) -> Result<(), AskError> {
        let missing = |(_, challenge): &(String, [u8; 32])| {
            let has = self.stock.lock().count(challenge)?;
            Ok::<_, AskError>((*challenge, self.issuer.keep.saturating_sub(has)))
        };
        let wanted: Vec<_> = self.origins.iter().map(missing).collect::<Result<_, _>>()?;
        if wanted.iter().all(|(_, missing)| *missing == 0) {
            return Ok(());
        }
        let keys = self.ask(Method::GET, DIRECTORY, None).await?;
        let keys = KeyDirectory::parse(&String::from_utf8_lossy(&keys))?;
        let listed: Vec<_> = keys.keys.iter().map(|it| *it.key.id()).collect();
        for (challenge, missing) in wanted.into_iter().filter(|(_, missing)| *missing > 0) {
            self.stock.lock().retain(&challenge, &listed)?;
            let tokens = self.issued(&keys, challenge, missing).await?;
            self.stock.lock().put(&tokens)?;
        }
        Ok(())
    }

    async fn issued(
        &self,
        keys: &KeyDirectory,
        challenge: [u8; 32],
        number: usize,
    ) -> Result<Vec<PrivateToken>, AskError> {
        let key = keys.current(unix_time()).ok_or(AskError::NoKey)?.clone();
        // Some milliseconds of arithmetic for each.
        let blinded = tokio::task::spawn_blocking(move || {
            let blinded = (0..number).map(|_| key.request(&challenge));
            blinded.collect::<Result<(Vec<_>, Vec<_>), _>>()
        });
        let (requests, pending) = blinded.await.unwrap_or(Err(KeyError::Unusable))?;
        let body = Bytes::from(encode_batch(&requests));
        let uri = path_of(&keys.request_uri);
        let answer = self.ask(Method::POST, &uri, Some(body)).await?;
        let signatures = decode_batch_response(&answer, pending.len());
        let signatures = signatures.map_err(|_| AskError::Unfit)?;
        let finished = tokio::task::spawn_blocking(move || {
            let given = pending.into_iter().zip(signatures);
            let given = given.filter_map(|(pending, signature)| Some((pending, signature?)));
            let finish =
                |(pending, signature): (PendingToken, [u8; 256])| pending.finish(&signature);
            given.map(finish).collect::<Result<Vec<_>, _>>()
        });
        Ok(finished.await.unwrap_or(Err(KeyError::Unusable))?)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Bytes, AskError> {
        let asked = Box::pin(self.exchange(method, path, body));
        timeout(ASK_TIMEOUT, asked)
            .await
            .unwrap_or(Err(AskError::TimedOut))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Bytes, AskError> {
        let address = &self.issuer.address;
        let terms = Terms::default().within(ASK_TIMEOUT);
        let stream = self.underlay.open_stream(address, &terms).await?;
        let trust = match self.issuer.pin {
            Some(pin) => Trust::Pins(vec![pin]),
            None => Trust::WebPki,
        };
        let tls = client_tls(&trust, &[ALPN_HTTP1]).map_err(std::io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(tls))
            .connect(server_name(address)?, stream)
            .await?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MOST_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        let request = request(method, path, &self.issuer, body);
        let asked = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MOST_BYTES)
                .collect()
                .await;
            let body = body.map_err(|_| AskError::Unfit)?.to_bytes();
            if status == StatusCode::OK {
                return Ok(body);
            }
            let why = String::from_utf8_lossy(&body);
            let why: String = why.chars().take(200).filter(|c| !c.is_control()).collect();
            Err(AskError::Status(status, format!(": {why}")))
        };
        tokio::select! {
            answer = asked => answer,
            // When the connection has ended, what came is still to be read.
            () = async { drop(connection.await); std::future::pending::<()>().await } => Err(AskError::Unfit),
        }
    }
}

fn request(
    method: Method,
    path: &str,
    issuer: &Issuer,
    body: Option<Bytes>,
) -> Request<Full<Bytes>> {
    let account = issuer.token.as_ref().filter(|_| body.is_some());
    let mut request = Request::new(Full::new(body.unwrap_or_default()));
    *request.method_mut() = method;
    // What an issuer gives as its path may be none: then it is asked at its root, and says so.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let fields = request.headers_mut();
    if let Ok(host) = issuer.address.to_string().parse() {
        fields.insert(header::HOST, host);
    }
    fields.insert(
        header::CONNECTION,
        header::HeaderValue::from_static("close"),
    );
    if let Some(account) = account {
        let kind = header::HeaderValue::from_static(BATCH_REQUEST_TYPE);
        fields.insert(header::CONTENT_TYPE, kind);
        let shown = Zeroizing::new(format!("Bearer {}", Token::reveal(account)));
        if let Ok(mut shown) = header::HeaderValue::from_str(&shown) {
            shown.set_sensitive(true);
            fields.insert(header::AUTHORIZATION, shown);
        }
    }
    request
}

/// The path of what a directory of keys names, which may be a whole URI: it is the issuer's own in any case.
fn path_of(uri: &str) -> String {
    let parsed: Result<http::Uri, _> = uri.parse();
    let path = parsed
        .ok()
        .and_then(|uri| uri.path_and_query().map(ToString::to_string));
    path.unwrap_or_else(|| "/".into())
}

fn server_name(address: &Target) -> Result<ServerName<'static>, std::io::Error> {
    match &address.host {
        Host::Ip(ip) => Ok(ServerName::from(*ip)),
        Host::Name(name) => {
            ServerName::try_from(name.as_str().to_owned()).map_err(std::io::Error::other)
        }
    }
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

impl fmt::Debug for Wallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wallet")
    }
}
