//! The client's half of SOCKS5: greeting, user name and password, request. `door` asks for connections, `udp` for associations.
//! RFC 1928, RFC 1929; the messages are `wire::socks`.

use std::time::Duration;

use hoplite_wire::socks::{
    CredentialsView, Endpoint, GreetingView, Method, Reply, ReplyCode, Request, Unread,
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use super::{TransferError, door::Token, patience::patiently, record::Record, tcp, trouble::Fault};

/// Does the handshake; answers with the endpoint that the proxy names.
pub(crate) async fn ask(
    stream: &mut TcpStream,
    request: &Request,
    token: &Token,
    (record, stall): (&mut Record, Duration),
) -> Result<Endpoint, TransferError> {
    greet(stream, token, (record, stall)).await?;
    let mut out = Vec::new();
    request.emit(&mut out);
    tcp::write(stream, &out, stall).await?;
    record.phases.proxy_request = Some(record.clock.us());
    let reply = reply(stream, stall).await?;
    record.phases.proxy_response = Some(record.clock.us());
    match reply.code {
        ReplyCode::Succeeded => Ok(reply.bound),
        code => Err(Fault::Proxy.because(format_args!("the SOCKS proxy refused: {code:?}"))),
    }
}

/// Offers credentials, which isolate, and none, for proxies that know none.
async fn greet(
    stream: &mut TcpStream,
    token: &Token,
    (record, stall): (&mut Record, Duration),
) -> Result<(), TransferError> {
    let mut out = Vec::new();
    let methods = [Method::Credentials as u8, Method::Open as u8];
    GreetingView { methods: &methods }.emit(&mut out);
    tcp::write(stream, &out, stall).await?;
    let choice = two(stream, stall).await?;
    record.phases.proxy_choice = Some(record.clock.us());
    if choice == Method::Open.emit() {
        return Ok(());
    }
    if choice != Method::Credentials.emit() {
        return Err(Fault::Proxy.because(format_args!("the SOCKS proxy chose {choice:?}")));
    }
    out.clear();
    let (user, password) = (token.user.as_bytes(), token.password.as_bytes());
    CredentialsView { user, password }.emit(&mut out);
    tcp::write(stream, &out, stall).await?;
    match two(stream, stall).await? {
        [_, 0] => Ok(()),
        _ => Err(Fault::Proxy.because("the SOCKS proxy refused user name and password")),
    }
}

async fn two(stream: &mut TcpStream, stall: Duration) -> Result<[u8; 2], TransferError> {
    let mut two = [0; 2];
    let read = patiently(stall, stream.read_exact(&mut two)).await?;
    read.map_err(|error| Fault::Proxy.because(error))?;
    Ok(two)
}

async fn reply(stream: &mut TcpStream, stall: Duration) -> Result<Reply, TransferError> {
    let mut input = Vec::with_capacity(512);
    loop {
        match Reply::parse(&input) {
            Ok((reply, len)) if len == input.len() => return Ok(reply),
            Ok(_) => return Err(Fault::Proxy.because("something came behind the SOCKS reply")),
            Err(Unread::More) => {}
            Err(Unread::Bad(why)) => return Err(Fault::Proxy.because(why)),
        }
        let read = patiently(stall, stream.read_buf(&mut input)).await?;
        match read.map_err(|error| Fault::Proxy.because(error))? {
            0 => return Err(Fault::Proxy.because("the SOCKS proxy closed the connection")),
            _ => continue,
        }
    }
}
