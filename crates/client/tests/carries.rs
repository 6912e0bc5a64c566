//! A program written against this library alone: two relays on loopback, targets behind them.

use hoplite_client::{BuildError, Builder, Client, ErrorKind, Reason};
use hoplite_testing::{
    relay::{metric, relays, until_metric, url},
    targets,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BOTH: &str = "ingress,egress";

/// A client over relays with these URLs.
fn client(urls: impl Iterator<Item = String>) -> Client {
    let add = |builder: Builder, url: String| builder.relay(&url).expect("a URL");
    let builder = urls.fold(Client::builder(), add);
    builder.build().expect("a client")
}

#[tokio::test]
async fn tcp_goes_over_both_relays_and_each_side_ends_by_itself() {
    let relays = relays(2);
    let client = client(relays.iter().map(|relay| url(relay, BOTH)));
    client.ready().await.expect("ready");
    let mut stream = client
        .connect(targets::tcp_echo().await)
        .await
        .expect("open");
    stream.write_all(b"there and back").await.expect("written");
    stream.shutdown().await.expect("ended");
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.expect("read");
    assert_eq!(back, b"there and back");
    for relay in &relays {
        let open = metric(relay, "connections_open{transport=\"quic\"}");
        assert!(open >= 1.0, "{open}");
    }
}

#[tokio::test]
async fn datagrams_come_back_whole() {
    let relays = relays(2);
    let client = client(relays.iter().map(|relay| url(relay, BOTH)));
    let flow = client.udp(targets::udp_echo().await).await.expect("open");
    assert!(flow.max_payload() >= 1000);
    let mut buffer = [0; 2000];
    // Any of them may be lost.
    let back = async {
        loop {
            flow.send(b"a datagram").await.expect("sent");
            let received = flow.recv(&mut buffer);
            let second = std::time::Duration::from_secs(1);
            if let Ok(received) = tokio::time::timeout(second, received).await {
                return received.expect("received");
            }
        }
    };
    let received = tokio::time::timeout(hoplite_testing::PATIENCE, back).await;
    let received = received.expect("in time");
    assert_eq!(&buffer[..received.segment], b"a datagram");
}

#[tokio::test]
async fn failures_say_whose_they_are() {
    let relays = relays(1);
    let client = client(relays.iter().map(|relay| url(relay, BOTH)));
    let nobody = client.connect(targets::nobody().await).await;
    let nobody = nobody.expect_err("nobody listens");
    assert_eq!(nobody.kind(), ErrorKind::TargetFailed);
    assert_eq!(nobody.reason(), Some(Reason::Refused));
    let forbidden = client.connect("169.254.169.254:80").await;
    assert_eq!(
        forbidden.expect_err("metadata").kind(),
        ErrorKind::Forbidden
    );
    let nothing = client.connect("no port").await;
    assert_eq!(
        nothing.expect_err("no target").kind(),
        ErrorKind::Unsupported
    );
    let nobody = client.resolve("nobody.invalid").await;
    let nobody = nobody.expect_err("no such name");
    assert_eq!(nobody.reason(), Some(Reason::NameNotFound));
}

#[tokio::test]
async fn a_relay_with_another_key_is_none() {
    let [one, other] = <[_; 2]>::try_from(relays(2)).expect("two");
    let forged = url(&one, BOTH).replace(&one.pin().to_string(), &other.pin().to_string());
    let client = Client::builder().relay(&forged).expect("a URL");
    let client = client.open_limit(std::time::Duration::from_secs(5));
    let client = client.build().expect("a client");
    let refused = client.connect(targets::tcp_echo().await).await;
    assert_eq!(
        refused.expect_err("another key").reason(),
        Some(Reason::Identity)
    );
}

#[tokio::test]
async fn identities_share_no_connection_to_the_last_relay() {
    let relays = relays(2);
    let client = client(relays.iter().map(|relay| url(relay, BOTH)));
    let echo = targets::tcp_echo().await;
    let mut open = Vec::new();
    for identity in ["alice", "bob", "carol", "alice"] {
        let one = client.isolated(identity);
        open.push(one.connect(echo).await.expect("open"));
    }
    // Theirs, and the one of those without an identity. The one for the next is dialled later, at a drawn time.
    let connections = "connections_open{transport=\"quic\"}";
    until_metric(&relays[1], connections, |open| open >= 4.0).await;
}

#[tokio::test]
async fn relays_hear_of_it_when_the_last_clone_is_gone() {
    let relays = relays(2);
    let client = client(relays.iter().map(|relay| url(relay, BOTH)));
    let stream = client
        .isolated("one")
        .connect(targets::tcp_echo().await)
        .await
        .expect("open");
    let open = || {
        let of = |relay| metric(relay, "connections_open{transport=\"quic\"}");
        relays.iter().map(of).sum::<f64>()
    };
    assert!(open() >= 2.0);
    drop((client, stream));
    // A relay that is not told waits for its own limit, which is longer.
    let gone = async {
        while open() > 0.0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let soon = std::time::Duration::from_secs(5);
    let gone = tokio::time::timeout(soon, gone).await;
    gone.expect("both were told");
}

#[test]
fn without_a_runtime_there_is_no_client() {
    let url = "hoplite://relay.example.org:443/relay?pin=sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let builder = Client::builder()
        .relay(url)
        .expect("as the documents have it");
    assert!(matches!(builder.build(), Err(BuildError::NoRuntime)));
}

#[tokio::test]
async fn what_makes_no_path_is_told_at_once() {
    let relays = relays(1);
    assert!(matches!(
        Client::builder().build(),
        Err(BuildError::Relays(0))
    ));
    let ingress = Client::builder()
        .relay(&url(&relays[0], "ingress"))
        .expect("a URL");
    assert!(matches!(
        ingress.build(),
        Err(BuildError::Role { place: "last", .. })
    ));
    assert!(matches!(
        Client::builder().relay("https://relay.example/"),
        Err(BuildError::Url(_))
    ));
}
