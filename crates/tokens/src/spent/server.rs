//! Where a shared store is, and how it is reached: TCP, with TLS or without, or a Unix socket.

use std::{
    fmt, io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_postgres::config::{Host, SslMode};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::{Mark, postgres, redis};

/// What a URL may look like.
const EXPECTED: &str = "expected postgres://USER:PASSWORD@HOST:PORT/DATABASE or redis://USER:PASSWORD@HOST:PORT/NUMBER \
                        (rediss: with TLS; redis+unix:///PATH: a socket)";
/// PostgreSQL's SSLRequest (its protocol, "SSL Session Encryption"): a length and a number.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A URL that names no server. It never says what stands there: that may be a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpentServerError(&'static str);

/// What is wrong with a server, in words that follow "the store of spent tokens". Nothing of it is a text that the server chooses freely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// Not there, or it went away.
    #[error("is not in reach: {0}")]
    Io(io::ErrorKind),
    /// It is there and does not finish its greeting.
    #[error("takes too long to greet")]
    Mute,
    /// TLS was asked for and is not to be had.
    #[error("has no TLS")]
    NoTls,
    /// The code of its protocol: an SQLSTATE, or the first word of an error of Redis.
    #[error("refuses: {0}")]
    Refuses(String),
    /// What comes is not its protocol, or no answer to what was asked.
    #[error("answers nonsense")]
    Nonsense,
    /// It drops what it was told to keep when memory is short.
    #[error("may forget marks when its memory is full: set its maxmemory-policy to noeviction")]
    Evicts,
    /// It has closed the connection.
    #[error("closed the connection")]
    Closed,
}

/// A code that a server has sent, as far as it looks like one.
pub(super) fn refuses(code: &str) -> ServerError {
    let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    match code.len() {
        1..=32 if code.chars().all(word) => ServerError::Refuses(code.to_owned()),
        _ => ServerError::Nonsense,
    }
}

/// A server that keeps marks for all relays of a fleet, and how one logs in there.
#[derive(Clone)]
pub struct SpentServer {
    host: Endpoint,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    login: Login,
}

#[derive(Clone)]
enum Endpoint {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// The clients' libraries keep passwords in memory of their own.
#[derive(Clone)]
enum Login {
    Postgres(Box<tokio_postgres::Config>),
    Redis(::redis::RedisConnectionInfo),
}

/// A connection that is ready for marks.
#[derive(Debug)]
pub(super) enum Client {
    Postgres(postgres::Client),
    Redis(redis::Client),
}

/// What carries a connection, and ends with it.
pub(super) type Protocol = Pin<Box<dyn Future<Output = ServerError> + Send>>;

impl SpentServer {
    /// Reads a URL: `postgres://` (`postgresql://`), `redis://` (`valkey://`), `rediss://` (`valkeys://`), `redis+unix://` (`unix://`). `tls` says
    /// whom to trust where the URL asks for TLS, by `rediss` or `sslmode=require`.
    ///
    /// # Errors
    /// What is wrong, without what stands there.
    pub fn new(url: &str, tls: &Arc<ClientConfig>) -> Result<Self, SpentServerError> {
        let (scheme, _) = url.split_once("://").ok_or(SpentServerError(EXPECTED))?;
        match scheme {
            "postgres" | "postgresql" => Self::postgres(url, tls),
            _ => Self::redis(scheme, url, tls),
        }
    }

    fn postgres(url: &str, tls: &Arc<ClientConfig>) -> Result<Self, SpentServerError> {
        if url.contains("sslmode=prefer") || url.contains("sslmode=allow") {
            let problem = "sslmode is `require` (or `verify-full`, the same here) or `disable`: who stands between would decide";
            return Err(SpentServerError(problem));
        }
        let url = url.replace("sslmode=verify-full", "sslmode=require");
        let mut login: tokio_postgres::Config =
            url.parse().map_err(|_| SpentServerError(EXPECTED))?;
        if login.get_user().is_none() {
            return Err(SpentServerError("the URL of PostgreSQL names no user"));
        }
        let ([host], []) = (login.get_hosts(), login.get_hostaddrs()) else {
            return Err(SpentServerError("expected one `host`, and no `hostaddr`"));
        };
        let port = login.get_ports().first().copied().unwrap_or(5432);
        let host = match host {
            Host::Tcp(host) => Endpoint::Tcp(host.clone(), port),
            Host::Unix(place) => Endpoint::Unix(place.join(format!(".s.PGSQL.{port}"))),
        };
        let tls = matches!(login.get_ssl_mode(), SslMode::Require).then_some(tls);
        let tls = named(&host, tls)?;
        // It is over before the library begins.
        login.ssl_mode(SslMode::Disable);
        if login.get_application_name().is_none() {
            login.application_name("hoplite");
        }
        let login = Login::Postgres(Box::new(login));
        Ok(Self { host, tls, login })
    }

    fn redis(scheme: &str, url: &str, tls: &Arc<ClientConfig>) -> Result<Self, SpentServerError> {
        // The library would want TLS of its own.
        let (plain, tls) = match scheme {
            "rediss" | "valkeys" => (url.replacen(scheme, "redis", 1), Some(tls)),
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => (url.to_owned(), None),
            _ => return Err(SpentServerError(EXPECTED)),
        };
        let plain = zeroize::Zeroizing::new(plain);
        let info = ::redis::IntoConnectionInfo::into_connection_info(plain.as_str());
        let info = info.map_err(|_| SpentServerError(EXPECTED))?;
        let host = match info.addr() {
            ::redis::ConnectionAddr::Tcp(host, port) => Endpoint::Tcp(host.clone(), *port),
            ::redis::ConnectionAddr::Unix(path) => Endpoint::Unix(path.clone()),
            _ => return Err(SpentServerError(EXPECTED)),
        };
        let tls = named(&host, tls)?;
        let login = info.redis_settings().clone();
        let login = login
            .set_skip_set_lib_name()
            .set_protocol(::redis::ProtocolVersion::RESP2);
        let login = Login::Redis(login);
        Ok(Self { host, tls, login })
    }

    /// Connects and logs in, for as long as it takes.
    pub(super) async fn connect(&self) -> Result<(Client, Protocol), ServerError> {
        let mut stream = self.dial().await.map_err(|error| unreached(&error))?;
        if let Some((tls, name)) = &self.tls {
            if matches!(self.login, Login::Postgres(_)) {
                let asked = ask_for_tls(&mut stream).await;
                if !asked.map_err(|error| unreached(&error))? {
                    return Err(ServerError::NoTls);
                }
            }
            let connector = TlsConnector::from(Arc::clone(tls));
            let secured = connector.connect(name.clone(), stream).await;
            stream = Box::new(secured.map_err(|error| unreached(&error))?);
        }
        let stream = Measured::new(stream);
        match &self.login {
            Login::Postgres(login) => postgres::connect(login, stream).await,
            Login::Redis(login) => redis::connect(login, stream).await,
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the store is the operator's, as the resolver is: no client names it"
    )]
    async fn dial(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.host {
            Endpoint::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

impl fmt::Debug for SpentServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpentServer(hidden)")
    }
}

type NamedTls = Option<(Arc<ClientConfig>, ServerName<'static>)>;

/// The name that a certificate must have.
fn named(host: &Endpoint, tls: Option<&Arc<ClientConfig>>) -> Result<NamedTls, SpentServerError> {
    match (tls, host) {
        (None, _) => Ok(None),
        (Some(tls), Endpoint::Tcp(host, _)) => {
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
            let name = name.map_err(|_| SpentServerError("for TLS a host needs a name"))?;
            Ok(Some((Arc::clone(tls), name)))
        }
        (Some(_), Endpoint::Unix(_)) => Err(SpentServerError("a Unix socket has no TLS: no name")),
    }
}

fn unreached(error: &io::Error) -> ServerError {
    ServerError::Io(error.kind())
}

/// What follows is TLS if the server says so in one byte; what came with it would not have been read here.
async fn ask_for_tls(stream: &mut Box<dyn Stream>) -> io::Result<bool> {
    stream.write_all(&SSL_REQUEST).await?;
    Ok(stream.read_u8().await? == b'S')
}

impl Client {
    /// Marks a token until a time in seconds since 1970, or for ever; whether it was not marked before. One request.
    pub(super) async fn mark(&self, mark: &Mark, until: Option<u64>) -> Result<bool, ServerError> {
        // The issuer's keys are few, and nobody chooses their hashes.
        let mut name = [0; 24];
        let (key, nonce) = name.split_at_mut(8);
        key.copy_from_slice(mark.key.split_at(8).0);
        nonce.copy_from_slice(&mark.nonce);
        match self {
            Self::Postgres(client) => client.mark(&name, until).await,
            Self::Redis(client) => client.mark(&name, until).await,
        }
    }

    /// Whether it still answers.
    pub(super) async fn ping(&self) -> Result<(), ServerError> {
        match self {
            Self::Postgres(client) => client.ping().await,
            Self::Redis(client) => client.ping().await,
        }
    }

    /// Forgets some of what ended before `now`; whether there may be more.
    pub(super) async fn forget(&self, now: u64) -> Result<bool, ServerError> {
        match self {
            Self::Postgres(client) => client.forget(now).await,
            // The server does by itself.
            Self::Redis(_) => Ok(false),
        }
    }
}

/// A byte stream.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How much more than it was asked a server may say, in bytes.
const CHATTER: usize = 64 << 10;
/// How many bytes may answer one.
const ANSWER: usize = 64;

/// A stream that ends when the other side says far more than it was asked: the libraries would keep a reply of any length.
pub(super) struct Measured {
    stream: Box<dyn Stream>,
    may_come: usize,
}

impl Measured {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            may_come: CHATTER,
        }
    }
}

impl AsyncRead for Measured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = buffer.filled().len().saturating_sub(before);
        match self.may_come.checked_sub(came) {
            Some(left) => self.may_come = left,
            None => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Measured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        let more = written.saturating_mul(ANSWER);
        self.may_come = self.may_come.saturating_add(more).min(CHATTER * ANSWER);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
