//! The client's half of an HTTP proxy: CONNECT with `Proxy-Authorization: Basic` as the isolation token.
//! `door` asks. RFC 9110 §9.3.6, RFC 9112, RFC 7617.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use hoplite_wire::Target;
use tokio::{io::AsyncReadExt, net::TcpStream};

use super::{TransferError, door::Token, patience::patiently, record::Record, tcp, trouble::Fault};

/// Octets of an answer's head that are read before giving up.
const LIMIT: usize = 16 * 1024;

/// Asks for a tunnel to `target`.
pub(crate) async fn ask(
    stream: &mut TcpStream,
    target: &Target,
    token: &Token,
    (record, stall): (&mut Record, Duration),
) -> Result<(), TransferError> {
    let credentials = STANDARD.encode(format!("{}:{}", token.user, token.password));
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
    );
    tcp::write(stream, request.as_bytes(), stall).await?;
    record.phases.proxy_request = Some(record.clock.us());
    let head = head(stream, stall).await?;
    record.phases.proxy_response = Some(record.clock.us());
    check(&head)
}

/// Everything up to the empty line. Nothing may come behind it: in every protocol here the client speaks first.
async fn head(stream: &mut TcpStream, stall: Duration) -> Result<Vec<u8>, TransferError> {
    let mut head = Vec::with_capacity(512);
    while !head.ends_with(b"\r\n\r\n") && head.len() < LIMIT {
        let read = patiently(stall, stream.read_buf(&mut head)).await?;
        if read.map_err(|error| Fault::Proxy.because(error))? == 0 {
            return Err(Fault::Proxy.because("the HTTP proxy closed the connection"));
        }
    }
    Ok(head)
}

fn check(head: &[u8]) -> Result<(), TransferError> {
    let line = head
        .split(|octet| *octet == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let version = words.next().unwrap_or_default();
    let status: u16 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    match (version.starts_with("HTTP/1."), status) {
        (true, 200..=299) => Ok(()),
        _ => Err(Fault::Proxy.because(format_args!("the HTTP proxy answered {line:?}"))),
    }
}
