//! What only HTTP/1.1 has, as users of an "HTTPS proxy" speak it: byte by byte, and with the real curl.

use std::{process::Stdio, sync::Arc, time::Duration};

use hoplite_crypto::{ALPN_HTTP1, Trust, client_tls};
use hoplite_relay::Handle;
use hoplite_testing::{PATIENCE, relay::relay, soon, targets};
use hoplite_wire::{ProxyError, Target, Template};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::admission::entry;

struct Client(TlsStream<TcpStream>);

/// The head of an answer.
struct Answer {
    status: u16,
    head: String,
}

impl Answer {
    fn error(&self) -> Option<ProxyError> {
        let line = self.head.lines().find(|l| l.starts_with("proxy-status: "));
        ProxyError::parse(line?.split_once(": ")?.1.as_bytes())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the client of an HTTPS proxy has no overlay"
)]
async fn connect_with(relay: &Handle, alpn: &[&[u8]]) -> Client {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), alpn).expect("valid");
    let stream = TcpStream::connect(relay.addresses()[0]).await;
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(tls));
    let connected = connector.connect(name, stream.expect("connected")).await;
    Client(connected.expect("spoken to"))
}

async fn connect(relay: &Handle) -> Client {
    connect_with(relay, &[ALPN_HTTP1]).await
}

#[expect(clippy::needless_pass_by_value, reason = "for the callers' sake")]
fn to(target: impl ToString) -> String {
    let target = target.to_string();
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
}

#[expect(clippy::needless_pass_by_value, reason = "for the callers' sake")]
fn upgrade(target: impl ToString) -> String {
    let target: Target = target.to_string().parse().expect("a target");
    let path = Template::well_known().expand(&target);
    format!(
        "GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n"
    )
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.expect("open");
        self.0.flush().await.expect("open");
    }

    /// Reads a head, and not a byte more.
    async fn answer(&mut self) -> Answer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = soon(self.0.read_u8()).await;
            head.push(byte.expect("answered"));
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        let status = head.split(' ').nth(1).expect("a status");
        Answer {
            status: status.parse().expect("a number"),
            head,
        }
    }

    async fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request).await;
        self.answer().await
    }

    async fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        soon(self.0.read_to_end(&mut rest)).await.map(|_| rest)
    }
}

#[tokio::test]
async fn a_client_that_names_no_version_is_served_http_1_1() {
    let relay = relay(|_| ());
    let mut client = connect_with(&relay, &[]).await;
    let answer = client.ask(to(targets::tcp_echo().await)).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn bytes_right_behind_the_head_are_carried_too() {
    let relay = relay(|_| ());
    let mut client = connect(&relay).await;
    let early = [to(targets::tcp_echo().await).as_bytes(), b"early"].concat();
    assert_eq!(client.ask(early).await.status, 200);
    client.0.shutdown().await.expect("open");
    assert_eq!(client.rest().await.expect("finished"), b"early");
}

#[tokio::test]
async fn a_client_without_the_token_is_challenged_and_may_ask_again() {
    let relay = relay(|config| config.auth.token = vec![entry("right")]);
    let mut client = connect(&relay).await;
    let request = to(targets::tcp_echo().await);
    let with = |token: &str| {
        let line = format!("Proxy-Authorization: Bearer {token}\r\n\r\n");
        request.trim_end().to_owned() + "\r\n" + &line
    };
    for wrong in [request.clone(), with("wrong")] {
        let answer = client.ask(wrong).await;
        assert_eq!(answer.status, 407);
        assert!(answer.head.contains("proxy-authenticate: "));
        assert_eq!(answer.error(), Some(ProxyError::HttpRequestDenied));
    }
    assert_eq!(client.ask(with("right")).await.status, 200);
}

#[tokio::test]
async fn an_upgrade_to_connect_udp_is_answered_as_one() {
    let relay = relay(|_| ());
    let mut client = connect(&relay).await;
    let answer = client.ask(upgrade(targets::udp_echo().await)).await;
    assert_eq!(answer.status, 101);
    for line in [
        "\r\nconnection: upgrade\r\n",
        "\r\nupgrade: connect-udp\r\n",
        "\r\ncapsule-protocol: ?1\r\n",
    ] {
        assert!(answer.head.contains(line), "no {line:?}");
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let relay = relay(|_| ());
    for (request, status) in [
        ("\x16\x03\x01 rubbish\r\n\r\n".to_owned(), 400),
        (to("no-port"), 400),
        (to("a:99999"), 400),
        (
            to("a:80").replace("\r\n\r\n", "\r\nContent-Length: 4\r\n\r\nGET "),
            400,
        ),
        (upgrade("192.0.2.1:9").replace("Host: relay\r\n", ""), 400),
        (upgrade("192.0.2.1:9").replace("/udp/", "/tcp/"), 404),
        (
            "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n".to_owned(),
            405,
        ),
        (to("a:80").replace("Host", &"x".repeat(40_000)), 431),
    ] {
        let answer = connect(&relay).await.ask(request).await;
        assert_eq!(answer.status, status, "{}", answer.head);
    }
}

#[tokio::test]
async fn what_follows_a_refused_request_as_content_is_no_request() {
    let relay = relay(|_| ());
    let mut client = connect(&relay).await;
    let hidden = to("no-port");
    let length = format!("\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len());
    let answer = client.ask(to("a:80").replace("\r\n\r\n", &length)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.head.contains("\r\nconnection: close\r\n"));
    assert_eq!(client.rest().await.unwrap_or_default(), b"");
}

#[tokio::test]
async fn a_slow_head_or_none_ends_the_connection() {
    let relay = relay(|config| config.limits.handshake = Duration::from_millis(500));
    for part in ["", "CONNECT 192.0.2.1:9 HTT"] {
        let mut client = connect(&relay).await;
        client.send(part).await;
        drop(client.rest().await);
    }
}

#[tokio::test]
async fn a_drain_ends_clients_at_rest() {
    let relay = relay(|_| ());
    let mut resting = connect(&relay).await;
    assert_eq!(resting.ask(to("no-port")).await.status, 400);
    let mut client = connect(&relay).await;
    client.ask(to(targets::tcp_echo().await)).await;
    let drained = tokio::spawn(relay.drain(PATIENCE));
    drop(resting.rest().await);
    client.send("going on").await;
    client.0.shutdown().await.expect("open");
    assert_eq!(client.rest().await.expect("finished"), b"going on");
    drop(client);
    assert!(
        drained.await.expect("no panic"),
        "everything ended in order"
    );
}

#[tokio::test]
async fn curl_fetches_through_its_https_proxy() {
    let relay = relay(|config| config.auth.token = vec![entry("right")]);
    let page = targets::tcp_page("through the relay").await;
    let known = curl(&["--version"]).await;
    if !known.is_some_and(|text| text.contains("HTTPS-proxy")) {
        println!("skipped: there is no curl here that speaks to an HTTPS proxy");
        return;
    }
    let (proxy, url) = (
        format!("https://{}", relay.addresses()[0]),
        format!("http://{page}/"),
    );
    let proxied = [
        "-q",
        "-sS",
        "--max-time",
        "20",
        "--noproxy",
        "",
        "--proxytunnel",
    ];
    let through = [
        "--proxy-insecure",
        "-x",
        &proxy,
        "--proxy-user",
        "user:right",
        &url,
    ];
    let fetched = curl(&[&proxied[..], &through].concat()).await;
    assert_eq!(fetched.as_deref(), Some("through the relay"));
}

/// What curl prints, errors last; `None` if there is no curl.
async fn curl(arguments: &[&str]) -> Option<String> {
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let run = tokio::task::spawn_blocking(move || {
        let mut curl = std::process::Command::new("curl");
        curl.args(arguments).stdin(Stdio::null()).output()
    });
    let output = run.await.expect("no panic").ok()?;
    let printed = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&printed).into_owned())
}
