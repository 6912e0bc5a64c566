//! `hoplite issuer`: gives the holders of accounts tokens for relays, without learning which they are, and never sees a relay. Attester and issuer of
//! RFC 9576 in one. HTTPS with HTTP/1.1: `/.well-known/private-token-issuer-directory` (RFC 9578 §4) and `/token-request` (§5 and §6; batches by
//! draft-ietf-privacypass-batched-tokens-08), and, if its file says so, a page for people (`page`). What it grants and what it signs with is decided in `hoplite_tokens::Issuer`.

use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hoplite_crypto::{ALPN_HTTP1, Certificates, Tokens, server_tls};
use hoplite_tokens::{Allowance, BearerRefused, Issuer, IssuerError, IssuerKey};
use hoplite_wire::{
    networks::{host_network, site_network},
    privacy_pass::{
        BATCH_REQUEST_TYPE, BATCH_RESPONSE_TYPE, BlindedMessage, LONGEST_REQUEST, PrivacyPassError,
        REQUEST_TYPE, RESPONSE_TYPE, TokenRequest, TokenResponse, TokenType, decode_batch,
        encode_batch_response,
    },
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};
use zeroize::Zeroizing;

use crate::{
    config::issuer::{self as config, Config, Limits},
    directory::now,
    http_server::{Bounds, Client, Place, Places, Rate, Rates, converse_over},
    identity::{self, Files},
    issuer_keys::DIRECTORY,
    openid::{Provider, Unknown},
    process::{self, Asked, Signals},
    say::Failure,
};

mod page;

use page::Page;

/// Where tokens are asked for.
const TOKEN_REQUEST: &str = "/token-request";
/// Bytes of a request's head: a bearer of a provider has some thousands, and a third more as the password of Basic.
const HEAD_SIZE: usize = 16_384;
/// Bytes of what stands before a batch of requests.
const BATCH_HEAD: usize = 8;
/// The mode of the file with secret keys: for this user, and the group that its relays are in.
const SECRETS_MODE: u32 = 0o640;
/// How often is looked whether a key is wanted, and how long clients may keep the directory.
const LOOK: Duration = Duration::from_secs(60);
const FRESH: u64 = 3600;

/// Who may have tokens.
struct Accounts {
    tokens: Tokens,
    /// Name and tokens a day, as they stand in the file.
    allowed: Vec<(String, u32)>,
}

/// What all connections have in common.
struct Server {
    issuer: Mutex<Issuer>,
    accounts: ArcSwap<Accounts>,
    /// Whose bearers are taken beside them.
    provider: ArcSwapOption<Provider>,
    replaced: Notify,
    /// For people, if the file says so.
    page: ArcSwapOption<Page>,
    requests: Mutex<Rates>,
    failures: Mutex<Rates>,
    signers: Arc<Semaphore>,
    /// Of keys that are made from now on.
    token_type: TokenType,
    /// What relays verify tokens with is written there,
    secrets: Option<PathBuf>,
    /// and was, since the last key was made.
    is_exported: AtomicBool,
    tls: TlsAcceptor,
    limits: Limits,
}

/// Serves with the file at `path`.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let config = config::load(path)?;
    let identity = identity_of(&config)?;
    let issuer = Issuer::open(&config.store, config.epoch.as_secs());
    let issuer = issuer.map_err(|error| unusable(&config, &error))?;
    process::raise_file_limit();
    process::current_thread_runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let certificates = Certificates::new(&identity).map_err(|error| {
            let remedy = "make a new identity with 'hoplite keygen --force'";
            Failure::new("starting the issuer", error, remedy)
        })?;
        let pin = identity.pin();
        let server = Arc::new(Server::new(&config, issuer, certificates)?);
        // Relays and clients are told of the next epoch's key from the first moment on.
        server.rotate().await.map_err(|error| match error {
            RotateError::Issuer(error) => unusable(&config, &error),
            RotateError::Export(failure) => failure,
        })?;
        server.tell_other_type();
        let listener = TcpListener::bind(config.listen).await.map_err(|error| {
            let remedy =
                "stop the program that has this port, or choose another address with `listen`";
            Failure::new(format!("listening on {}", config.listen), error, remedy)
        })?;
        let listen = listener.local_addr().map_or(config.listen, |bound| bound);
        info!(%listen, %pin, accounts = config.account.len(), "the issuer is up");
        let stopped = async {
            while signals.next().await == Asked::Reload {
                server.reload(path);
            }
        };
        tokio::select! {
            () = serve(&listener, &server) => {}
            () = server.keep_rotating() => {}
            () = server.keep_provider() => {}
            () = stopped => info!("the issuer has stopped"),
        }
        Ok(())
    })
}

/// Why there are no new keys, or why relays are not given them.
#[derive(Debug, thiserror::Error)]
enum RotateError {
    #[error("{0}")]
    Issuer(#[from] IssuerError),
    #[error("{0}")]
    Export(Failure),
}

impl From<Failure> for RotateError {
    fn from(failure: Failure) -> Self {
        Self::Export(failure)
    }
}

fn unusable(config: &Config, error: &IssuerError) -> Failure {
    let doing = format!("opening the keys in {}", config.store.display());
    Failure::new(doing, error, "then start it again")
}

/// Its certificate and key; its own ones are made when they are missing.
fn identity_of(config: &Config) -> Result<hoplite_crypto::Identity, Failure> {
    let files = match &config.tls {
        Some(tls) => Files {
            certificate: tls.cert.clone(),
            key: tls.key.clone(),
        },
        None => Files::within(&config.identity),
    };
    if config.tls.is_none() && !files.exist() {
        identity::store(&config.identity, &identity::make(&[])?, false)?;
        info!("a new identity was made in {}", config.identity.display());
    }
    files.read()
}

async fn serve(listener: &TcpListener, server: &Arc<Server>) {
    let limits = &server.limits;
    let places = Places::new(limits.connections, limits.per_client);
    // A handshake costs more than a request. Who asks too much is still told so on half of his connections.
    let mut handshakes = Rates::new(Rate {
        all: u64::MAX,
        each: limits.requests_per_client.saturating_mul(2),
    });
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from = host_network(address.ip());
        // By network alone: connections cost who opens them nothing, and should use up nothing that others need.
        if !handshakes.take(site_network(from), 1, true) {
            continue;
        }
        let place = places.enter(Client {
            address: from,
            is_known: false,
        });
        tokio::spawn(converse(stream, Arc::clone(server), Arc::new(place)));
    }
}

async fn converse(stream: TcpStream, server: Arc<Server>, place: Arc<Place>) {
    let bounds = Bounds {
        head: server.limits.request,
        head_size: HEAD_SIZE,
        whole: server.limits.connection,
    };
    let tls = server.tls.clone();
    let greeted = async move |watched| tls.accept(watched).await.ok();
    let of = Arc::clone(&place);
    let answer = move |request| answer(request, Arc::clone(&server), Arc::clone(&of));
    converse_over(stream, place, bounds, greeted, answer).await;
}

/// What is not answered by what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    status: StatusCode,
    why: Cow<'static, str>,
    /// Seconds after which it may be asked again.
    again_in: Option<u64>,
}

fn stopping() -> Refusal {
    refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "the issuer is about to stop",
    )
}

/// Some milliseconds of a processor for each, on as many threads as may be.
async fn respond(
    turn: OwnedSemaphorePermit,
    work: Vec<(Arc<IssuerKey>, BlindedMessage)>,
) -> Result<Vec<Option<TokenResponse>>, Refusal> {
    let issued = spawn_blocking(move || {
        // It goes on when nobody waits for it any more.
        let _turn = turn;
        let issue = |(key, blinded): &(Arc<IssuerKey>, _)| key.issue(blinded).ok();
        work.iter().map(issue).collect()
    });
    issued.await.map_err(|_| stopping())
}

const fn refusal(status: StatusCode, why: &'static str) -> Refusal {
    Refusal {
        status,
        why: Cow::Borrowed(why),
        again_in: None,
    }
}

const NO_DOCUMENT: Refusal = refusal(StatusCode::NOT_FOUND, "there is no such document");

/// What is answered, of which media type.
type Answered = (&'static str, Bytes);

async fn answer(
    request: Request<Incoming>,
    server: Arc<Server>,
    place: Arc<Place>,
) -> Response<Full<Bytes>> {
    let from = place.client().address;
    let answered = match (request.method(), request.uri().path()) {
        _ if !server.requests.lock().take(from, 1, false) => Err(refusal(
            StatusCode::TOO_MANY_REQUESTS,
            "too much is asked for: ask again in a minute",
        )),
        (&Method::GET | &Method::HEAD, DIRECTORY) => Ok(server.directory()),
        (&Method::POST, TOKEN_REQUEST) => server.issue(request, &place).await,
        (_, DIRECTORY | TOKEN_REQUEST) => Err(refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            "the directory is for GET, /token-request for POST",
        )),
        (&Method::GET | &Method::HEAD, path) => server.page(path),
        _ => Err(NO_DOCUMENT),
    };
    let mut response = match answered {
        Ok((kind, body)) => given(kind, body),
        Err(refusal) => refused(refusal),
    };
    page::guard(response.headers_mut());
    response
}

fn given(kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let cached = match kind {
        DIRECTORY_TYPE => format!("max-age={FRESH}"),
        _ => "no-store".into(),
    };
    fields.extend(cached.parse().map(|value| (header::CACHE_CONTROL, value)));
    response
}

fn refused(refusal: Refusal) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(refusal.why.into_owned().into()));
    *response.status_mut() = refusal.status;
    let fields = response.headers_mut();
    let text = HeaderValue::from_static("text/plain; charset=us-ascii");
    fields.insert(header::CONTENT_TYPE, text);
    if refusal.status == StatusCode::UNAUTHORIZED {
        let challenge =
            HeaderValue::from_static("Bearer realm=\"hoplite\", Basic realm=\"hoplite\"");
        fields.insert(header::WWW_AUTHENTICATE, challenge);
    }
    let again = refusal.again_in.map(HeaderValue::from);
    fields.extend(again.map(|seconds| (header::RETRY_AFTER, seconds)));
    response
}

const DIRECTORY_TYPE: &str = "application/private-token-issuer-directory";

/// Requests of either form, and how they are answered.
struct Requests {
    all: Vec<TokenRequest>,
    is_batch: bool,
}

impl Requests {
    fn read(fields: &HeaderMap, body: &[u8], most: usize) -> Result<Self, Refusal> {
        let kind = fields.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_batch = kind == Some(BATCH_REQUEST_TYPE.as_bytes());
        if !is_batch && kind != Some(REQUEST_TYPE.as_bytes()) {
            let why = "a request for tokens is of another media type (RFC 9578)";
            return Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
        }
        let read = if is_batch {
            decode_batch(body, most)
        } else {
            TokenRequest::decode(body).map(|request| vec![request])
        };
        let all = read.map_err(|error| match error {
            PrivacyPassError::TooMany => {
                refusal(StatusCode::PAYLOAD_TOO_LARGE, "too many tokens at once")
            }
            PrivacyPassError::UnknownType => refusal(
                StatusCode::UNPROCESSABLE_ENTITY,
                "tokens of this type are not issued",
            ),
            PrivacyPassError::Malformed => {
                refusal(StatusCode::BAD_REQUEST, "this is no request for tokens")
            }
        })?;
        Ok(Self { all, is_batch })
    }

    fn answer(&self, responses: &[Option<TokenResponse>]) -> Result<Answered, Refusal> {
        match responses {
            all if self.is_batch => Ok((BATCH_RESPONSE_TYPE, encode_batch_response(all).into())),
            [Some(response)] => Ok((RESPONSE_TYPE, response.encode().into())),
            _ => {
                let why = "the blinded message does not fit the key";
                Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, why))
            }
        }
    }
}

impl Server {
    fn new(config: &Config, issuer: Issuer, identity: Arc<Certificates>) -> Result<Self, Failure> {
        let limits = config.limits.clone();
        let tls = server_tls(identity, &[ALPN_HTTP1])
            .map_err(|error| Failure::new("starting the issuer", error, "please report this"))?;
        let signers = match limits.signers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        };
        let rates = |all, each| Mutex::new(Rates::new(Rate { all, each }));
        Ok(Self {
            issuer: Mutex::new(issuer),
            accounts: ArcSwap::from_pointee(Accounts::new(config)),
            provider: ArcSwapOption::new(provider_of(config, None)?),
            replaced: Notify::new(),
            page: ArcSwapOption::new(page_of(config)),
            requests: rates(limits.requests, limits.requests_per_client),
            failures: rates(limits.requests, limits.failures_per_client),
            signers: Arc::new(Semaphore::new(signers.min(Semaphore::MAX_PERMITS))),
            token_type: config.tokens.into(),
            secrets: config.secrets.clone(),
            is_exported: AtomicBool::new(false),
            tls: TlsAcceptor::from(Arc::new(tls)),
            limits,
        })
    }

    /// Keys that are published are used, whatever the file says now.
    fn tell_other_type(&self) {
        let made = self.issuer.lock().token_type(now());
        if made.is_some_and(|made| made != self.token_type) {
            info!("tokens are of another type until the keys that are published have been used");
        }
    }

    fn directory(&self) -> Answered {
        let directory = self.issuer.lock().directory(TOKEN_REQUEST, now());
        (DIRECTORY_TYPE, directory.to_json().into())
    }

    fn page(&self, path: &str) -> Result<Answered, Refusal> {
        let page = self.page.load();
        let document = page.as_ref().and_then(|page| page.document(path));
        document.ok_or(NO_DOCUMENT)
    }

    /// Tokens for the account that is shown, as many as it may still have today.
    async fn issue(&self, request: Request<Incoming>, place: &Place) -> Result<Answered, Refusal> {
        let (head, body) = request.into_parts();
        let (name, per_day) = self.account(&head.headers).map_err(|why| {
            if self.failures.lock().take(place.client().address, 1, false) {
                return why;
            }
            refusal(
                StatusCode::TOO_MANY_REQUESTS,
                "too many tokens of no account: try in a minute",
            )
        })?;
        // Strangers who open connections without end make no account wait anew for its turn to have tokens signed.
        place.make_known();
        let most = self.limits.batch.saturating_mul(LONGEST_REQUEST) + BATCH_HEAD;
        let body = Limited::new(body, most).collect();
        let body = timeout(self.limits.request, body).await.map_err(|_| {
            refusal(
                StatusCode::REQUEST_TIMEOUT,
                "the request has not come in time",
            )
        })?;
        let body =
            body.map_err(|_| refusal(StatusCode::PAYLOAD_TOO_LARGE, "too many tokens at once"))?;
        let requests = Requests::read(&head.headers, &body.to_bytes(), self.limits.batch)?;
        let keys = self.keys(&requests.all)?;
        // What counts is signed at once: who waits, and goes away or loses his place, has lost no token of his day.
        let turn = Arc::clone(&self.signers).acquire_owned().await;
        let turn = turn.map_err(|_| stopping())?;
        let granted = self.grant(&name, per_day, keys.len())?;
        let work = keys.into_iter().zip(&requests.all).take(granted);
        let work = work.map(|(key, request)| (key, request.blinded.clone()));
        let mut responses = respond(turn, work.collect()).await?;
        responses.resize(requests.all.len(), None);
        requests.answer(&responses)
    }

    /// Whose account is shown, and how many tokens it may have in a day: one of the file's, or the holder of a provider's bearer by his pseudonym.
    fn account(&self, fields: &HeaderMap) -> Result<(String, u32), Refusal> {
        let none = || refusal(StatusCode::UNAUTHORIZED, "no account has this token");
        let shown = credential(fields).ok_or_else(none)?;
        let accounts = self.accounts.load();
        if let Some((name, per_day)) = accounts.find(&shown) {
            return Ok((name.clone(), *per_day));
        }
        let provider = self.provider.load_full().ok_or_else(none)?;
        let (holder, per_day) = provider.holder(&shown).map_err(|unknown| match unknown {
            Unknown::NoKeys => refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "the identity provider cannot be reached: ask later",
            ),
            Unknown::Refused(why @ BearerRefused::NotEntitled) => Refusal {
                why: Cow::Owned(why.to_string()),
                ..refusal(StatusCode::FORBIDDEN, "")
            },
            Unknown::Refused(why) => Refusal {
                why: Cow::Owned(format!("no account has this token, and as a bearer: {why}")),
                ..none()
            },
        })?;
        Ok((self.issuer.lock().pseudonym(&holder), per_day))
    }

    /// The key that each request names; all of them, or nothing is counted.
    fn keys(&self, requests: &[TokenRequest]) -> Result<Vec<Arc<IssuerKey>>, Refusal> {
        let issuer = self.issuer.lock();
        let key = |request: &TokenRequest| {
            issuer.key(request.token_type(), request.truncated_key_id, now())
        };
        let keys: Option<Vec<_>> = requests.iter().map(key).collect();
        let why = "this key is not in use: fetch the directory of keys again";
        keys.ok_or_else(|| refusal(StatusCode::UNPROCESSABLE_ENTITY, why))
    }

    /// How many of them the account may have; they count from now on.
    fn grant(&self, account: &str, per_day: u32, asked: usize) -> Result<usize, Refusal> {
        let asked = u32::try_from(asked).unwrap_or(u32::MAX);
        let granted = self
            .issuer
            .lock()
            .grant(&Allowance { account, per_day }, asked, now());
        match granted {
            Ok(Ok(granted)) => Ok(usize::try_from(granted).unwrap_or(usize::MAX)),
            Ok(Err(used_up)) => Err(Refusal {
                again_in: Some(used_up.again_in),
                ..refusal(
                    StatusCode::TOO_MANY_REQUESTS,
                    "all tokens of today are given out",
                )
            }),
            Err(error) => {
                error!(%error, "no token can be counted, and none is given");
                let why = "the issuer cannot count tokens now: ask later";
                Err(refusal(StatusCode::SERVICE_UNAVAILABLE, why))
            }
        }
    }

    /// Makes the keys that are wanted, this epoch's and the next one's, and writes what relays verify tokens with.
    async fn rotate(&self) -> Result<(), RotateError> {
        loop {
            let Some(epoch) = self.issuer.lock().wanted(now()) else {
                break;
            };
            let token_type = self.token_type;
            let Ok(key) = spawn_blocking(move || IssuerKey::generate(token_type)).await else {
                return Ok(());
            };
            let key = key.map_err(IssuerError::from)?;
            self.issuer.lock().take(epoch, key, now())?;
            info!("a key for tokens was made");
            self.is_exported.store(false, Ordering::Relaxed);
        }
        if !self.is_exported.load(Ordering::Relaxed) {
            self.export()?;
        }
        Ok(())
    }

    /// Relays read the file again when they are told to: it is whole at any time, and has the next epoch's key long before that is used.
    fn export(&self) -> Result<(), RotateError> {
        if let Some(file) = &self.secrets {
            let keys = self.issuer.lock().verifier_keys(TOKEN_REQUEST, now());
            identity::write(file, keys.to_json().as_bytes(), SECRETS_MODE)?;
            info!("the keys for relays were written");
        }
        self.is_exported.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn keep_rotating(&self) {
        loop {
            sleep(LOOK).await;
            if let Err(error) = self.rotate().await {
                warn!("no new key for tokens: {error}");
            }
        }
    }

    /// Keeps the keys of the provider whose bearers are taken, whichever it is.
    async fn keep_provider(&self) {
        loop {
            let provider = self.provider.load_full();
            let keep = async {
                match &provider {
                    Some(provider) => provider.keep().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = keep => {}
                () = self.replaced.notified() => {}
            }
        }
    }

    /// Takes the accounts of the file as it is now.
    fn reload(&self, path: &Path) {
        let before = self.provider.load_full();
        let read = config::load(path)
            .and_then(|config| Ok((provider_of(&config, before.as_deref())?, config)));
        match read {
            Ok((provider, config)) => {
                self.accounts.store(Arc::new(Accounts::new(&config)));
                self.provider.store(provider);
                self.replaced.notify_one();
                self.page.store(page_of(&config));
                info!(
                    accounts = config.account.len(),
                    "the accounts were read again"
                );
            }
            Err(failure) => error!("the file is not used: {failure}"),
        }
    }
}

impl Accounts {
    fn new(config: &Config) -> Self {
        let known = || {
            config
                .account
                .iter()
                .filter(|account| account.token.is_some())
        };
        Self {
            tokens: Tokens::new(known().filter_map(|account| account.token.as_ref())),
            allowed: known()
                .map(|account| (account.name.clone(), account.tokens_per_day))
                .collect(),
        }
    }

    /// Whose token it is.
    fn find(&self, shown: &[u8]) -> Option<&(String, u32)> {
        self.allowed.get(self.tokens.find(shown)?)
    }
}

/// What is shown as a bearer or as the password of Basic (RFC 6750 §2.1, RFC 7617).
fn credential(fields: &HeaderMap) -> Option<Zeroizing<Vec<u8>>> {
    let value = fields.get(header::AUTHORIZATION)?.as_bytes().trim_ascii();
    let space = value.iter().position(u8::is_ascii_whitespace)?;
    let (scheme, shown) = value.split_at(space);
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Zeroizing::new(shown.trim_ascii().to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = Zeroizing::new(STANDARD.decode(shown.trim_ascii()).ok()?);
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Zeroizing::new(pair.split_at(colon + 1).1.to_vec()))
}

fn page_of(config: &Config) -> Option<Arc<Page>> {
    config.page.as_ref().map(|page| Arc::new(Page::new(page)))
}

fn provider_of(
    config: &Config,
    before: Option<&Provider>,
) -> Result<Option<Arc<Provider>>, Failure> {
    let provider = config.oidc.as_ref().map(|oidc| Provider::new(oidc, before));
    Ok(provider.transpose()?.map(Arc::new))
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}
