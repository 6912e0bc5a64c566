//! For hyper: a tower service from a URI to a connection through the relays.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{self, Connected},
    rt::TokioIo,
};
use tower_service::Service;

use crate::{Client, Error, ErrorKind, TcpStream};

/// Connects to the host and port of a URI; without a port to 443 for `https`, else to 80. It speaks no TLS, and so it refuses `https` until it is told that
/// something around it does: the last relay would read everything.
///
/// An error of hyper's client has ours as a source: `error.source()` once or twice, then `downcast_ref::<hoplite_client::Error>()`.
#[derive(Clone, Debug)]
pub struct Connector {
    client: Client,
    enforce_http: bool,
}

impl Connector {
    pub(crate) const fn new(client: Client) -> Self {
        Self {
            client,
            enforce_http: true,
        }
    }

    /// Whether `https` is refused; true if nothing is said. With `false` what is around it speaks TLS, as
    /// `hyper_rustls::HttpsConnectorBuilder::…::wrap_connector(client.connector().enforce_http(false))` does.
    #[must_use]
    pub const fn enforce_http(mut self, enforce: bool) -> Self {
        self.enforce_http = enforce;
        self
    }
}

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (client, enforce_http) = (self.client.clone(), self.enforce_http);
        Box::pin(async move {
            let none = |doing| Error::new(ErrorKind::Unsupported, doing);
            let host = uri.host();
            let host = host.ok_or_else(|| none("connecting to a URI without a host"))?;
            let is_https = uri.scheme_str() == Some("https");
            if is_https && enforce_http {
                return Err(none("connecting to an https URI without TLS"));
            }
            let default = if is_https { 443 } else { 80 };
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = client.connect((host, uri.port_u16().unwrap_or(default)));
            Ok(Connection(TokioIo::new(stream.await?)))
        })
    }
}

/// A connection as hyper has it.
#[derive(Debug)]
pub struct Connection(TokioIo<TcpStream>);

impl connect::Connection for Connection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
