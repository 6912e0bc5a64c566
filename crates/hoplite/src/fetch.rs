//! One document over HTTPS: what the identity provider of an issuer, and the issuer of a relay's tokens, publish. Straight to its host, without
//! following anybody elsewhere, and no more than so many bytes. [`exchange`] is the request and its answer, over any stream.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hoplite_crypto::{ALPN_HTTP1, Trust, client_tls};
use hoplite_overlay::{Direct, Error, Overlay, Terms};
use hoplite_wire::{Host, Target};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("it is no https:// address with a host")]
    NoAddress,
    #[error("its host cannot be reached ({0})")]
    Unreachable(#[from] Error),
    #[error("no TLS with its host ({0})")]
    Tls(#[from] std::io::Error),
    #[error("the answer is no HTTP ({0})")]
    Http(#[from] hyper::Error),
    #[error("the answer is {0}")]
    Status(StatusCode),
    #[error("the document is larger than {0} bytes, or was cut off")]
    TooLarge(usize),
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// Fetches what is at an `https://` address, at most `most` bytes of it, within a time.
pub(crate) async fn fetch(
    address: &str,
    trust: &Trust,
    most: usize,
    within: Duration,
) -> Result<Bytes, FetchError> {
    let fetched = Box::pin(get(address, trust, most, within));
    timeout(within, fetched)
        .await
        .unwrap_or(Err(FetchError::TimedOut(within)))
}

/// Whether it is an address that can be fetched.
pub(crate) fn is_address(address: &str) -> bool {
    place(address, "https", 443).is_some()
}

/// Where it is, and what is asked for there; `None` unless it is of this scheme, which has `port`, and has a host and nobody's name and password.
pub(crate) fn place(address: &str, scheme: &str, port: u16) -> Option<(Target, Uri)> {
    let uri: Uri = address.parse().ok()?;
    let authority = uri.authority().filter(|it| !it.as_str().contains('@'))?;
    if uri.scheme_str() != Some(scheme) {
        return None;
    }
    let port = authority.port_u16().unwrap_or(port);
    let target = format!("{}:{port}", authority.host()).parse().ok()?;
    Some((target, uri))
}

async fn get(
    address: &str,
    trust: &Trust,
    most: usize,
    within: Duration,
) -> Result<Bytes, FetchError> {
    let (target, uri) = place(address, "https", 443).ok_or(FetchError::NoAddress)?;
    let name = match &target.host {
        Host::Ip(ip) => ServerName::from(*ip),
        Host::Name(name) => {
            ServerName::try_from(name.as_str().to_owned()).map_err(std::io::Error::other)?
        }
    };
    let terms = Terms::default().within(within);
    let stream = Direct::for_tunnels().open_stream(&target, &terms).await?;
    let tls = client_tls(trust, &[ALPN_HTTP1]).map_err(std::io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await?;
    let answer = exchange(stream, &uri, most).await?;
    if answer.status != StatusCode::OK {
        return Err(FetchError::Status(answer.status));
    }
    answer.body.ok_or(FetchError::TooLarge(most))
}

/// What somebody answered.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    /// `None` if it was larger than it may be, or was cut off.
    pub(crate) body: Option<Bytes>,
}

/// Asks for `uri` by GET over `stream`, and reads the answer's body up to `most` bytes. Takes as long as the other side does.
pub(crate) async fn exchange<S>(stream: S, uri: &Uri, most: usize) -> Result<Answer, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::new(Empty::<Bytes>::new());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().unwrap_or_default();
    let fields = request.headers_mut();
    let host = uri.authority().map(|authority| authority.as_str().parse());
    fields.extend(host.and_then(Result::ok).map(|host| (header::HOST, host)));
    fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    let asked = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, most).collect().await.ok();
        Ok(Answer {
            status: head.status,
            fields: head.headers,
            body: body.map(http_body_util::Collected::to_bytes),
        })
    };
    tokio::select! {
        answer = asked => answer,
        // When the connection has ended, what came is still to be read.
        never = async { drop(connection.await); std::future::pending().await } => never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_https_with_a_host_and_nobodys_name_and_password() {
        let found = place("https://login.example/a/b?c=d", "https", 443);
        let (target, uri) = found.expect("an address");
        assert_eq!(target.to_string(), "login.example:443");
        assert_eq!(
            uri.path_and_query().map(ToString::to_string).as_deref(),
            Some("/a/b?c=d")
        );
        for address in [
            "http://login.example/",
            "https://",
            "https://a:b@login.example/",
            "login.example",
            "file:///etc/passwd",
            "",
        ] {
            assert!(!is_address(address), "{address}");
        }
        assert!(is_address("https://[::1]:8443/keys"));
        assert!(place("http://[::1]/keys", "http", 80).is_some());
    }
}
