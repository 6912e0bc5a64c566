//! The issuer's server, as it is asked: for its keys, and for tokens, which an account pays for. draft-ietf-privacypass-batched-tokens, RFC 9578 §4.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_HTTP1, Token, Trust, client_tls};
use hoplite_overlay::{Error, Overlay, Terms, direct::Direct};
use hoplite_tokens::{ChallengeDigests, KeyDirectory, KeyError, PendingToken};
use hoplite_wire::{
    Host, Target,
    privacy_pass::{
        BATCH_REQUEST_TYPE, PrivateToken, TokenResponse, decode_batch_response, encode_batch,
    },
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::{
    config::client::Issuer,
    issuer_keys::{DIRECTORY, MOST_BYTES},
};

/// How long an issuer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);

/// Why an issuer gave no tokens.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("it cannot be reached ({0})")]
    Unreachable(#[from] Error),
    #[error("no TLS with it ({0}): check its address and its pin")]
    Tls(#[from] io::Error),
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
    #[error("the tokens' file: {0}")]
    Purse(io::Error),
    #[error("the account's token cannot be read: {0}")]
    Account(io::Error),
    #[error("it has not answered in time")]
    TimedOut,
    #[error("the names that its tokens are for are too long")]
    Challenge,
}

/// Where it is, and how it is reached.
#[derive(Clone, Copy)]
pub(super) struct Server<'a> {
    issuer: &'a Issuer,
    underlay: &'a Direct,
}

impl<'a> Server<'a> {
    pub(super) fn of(issuer: &'a Issuer, underlay: &'a Direct) -> Self {
        Self { issuer, underlay }
    }

    /// Its keys, whoever asks.
    pub(super) async fn keys(&self) -> Result<KeyDirectory, AskError> {
        let keys = self.ask((Method::GET, DIRECTORY), None, None).await?;
        Ok(KeyDirectory::parse(&String::from_utf8_lossy(&keys))?)
    }

    /// So many tokens for a name, as far as it gives them to this account.
    pub(super) async fn tokens(
        &self,
        keys: &KeyDirectory,
        challenges: &ChallengeDigests,
        number: usize,
        account: Option<&Token>,
    ) -> Result<Vec<PrivateToken>, AskError> {
        let key = keys.current(unix_time()).ok_or(AskError::NoKey)?.clone();
        let challenge = *challenges.of(key.token_type());
        // Some milliseconds of arithmetic for each.
        let blinded = tokio::task::spawn_blocking(move || {
            let blinded = (0..number).map(|_| key.request(&challenge));
            blinded.collect::<Result<(Vec<_>, Vec<_>), _>>()
        });
        let (requests, pending) = blinded.await.unwrap_or(Err(KeyError::Unusable))?;
        let body = Bytes::from(encode_batch(&requests));
        let path = path_of(&keys.request_uri);
        let answer = self.ask((Method::POST, &path), account, Some(body)).await?;
        let responses = decode_batch_response(&answer, pending.len());
        let responses = responses.map_err(|_| AskError::Unfit)?;
        let finished = tokio::task::spawn_blocking(move || {
            let given = pending.into_iter().zip(responses);
            let given = given.filter_map(|(pending, response)| Some((pending, response?)));
            let finish =
                |(pending, response): (PendingToken, TokenResponse)| pending.finish(&response);
            given.map(finish).collect::<Result<Vec<_>, _>>()
        });
        Ok(finished.await.unwrap_or(Err(KeyError::Unusable))?)
    }

    async fn ask(
        &self,
        what: (Method, &str),
        account: Option<&Token>,
        body: Option<Bytes>,
    ) -> Result<Bytes, AskError> {
        let request = request(what, &self.issuer.address, account, body);
        let asked = Box::pin(self.exchange(request));
        timeout(ASK_TIMEOUT, asked)
            .await
            .unwrap_or(Err(AskError::TimedOut))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Bytes, AskError> {
        let terms = Terms::default().within(ASK_TIMEOUT);
        let stream = self
            .underlay
            .open_stream(&self.issuer.address, &terms)
            .await?;
        let trust = match self.issuer.pin {
            Some(pin) => Trust::Pins(vec![pin]),
            None => Trust::WebPki,
        };
        let tls = client_tls(&trust, &[ALPN_HTTP1]).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(tls))
            .connect(server_name(&self.issuer.address)?, stream)
            .await?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MOST_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
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
    (method, path): (Method, &str),
    address: &Target,
    account: Option<&Token>,
    body: Option<Bytes>,
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.unwrap_or_default()));
    *request.method_mut() = method;
    // What an issuer gives as its path may be none: then it is asked at its root, and says so.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let fields = request.headers_mut();
    if let Ok(host) = address.to_string().parse() {
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

fn server_name(address: &Target) -> Result<ServerName<'static>, io::Error> {
    match &address.host {
        Host::Ip(ip) => Ok(ServerName::from(*ip)),
        Host::Name(name) => {
            ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)
        }
    }
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}
