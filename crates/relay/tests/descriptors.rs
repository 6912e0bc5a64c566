//! A relay whose process has no file descriptor left goes on accepting: idle connections make room. A process of its own, because the limit is the process's.

use std::{fs::File, sync::Arc, time::Duration};

use hoplite_crypto::{ALPN_HTTP1, Identity, Trust, client_tls};
use hoplite_relay::{Config, Handle, Relay};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const PATIENCE: Duration = Duration::from_secs(20);

#[expect(clippy::disallowed_methods, reason = "an attacker is no flow")]
async fn connect(relay: &Handle) -> TlsStream<TcpStream> {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), &[ALPN_HTTP1]).expect("valid");
    let stream = TcpStream::connect(relay.addresses()[0]).await;
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(tls));
    let connected = connector.connect(name, stream.expect("connected")).await;
    connected.expect("spoken to")
}

#[tokio::test]
async fn idle_connections_make_room_when_no_descriptor_is_left() {
    let made = Identity::generate(&["localhost".to_owned()]).expect("made");
    let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes());
    let mut config = Config {
        listen: vec!["127.0.0.1:0".parse().expect("address")],
        ..Config::default()
    };
    config.limits.shards = 1;
    // Nothing ends by itself while the test lasts.
    config.limits.handshake = 10 * PATIENCE;
    config.limits.idle_connection = 10 * PATIENCE;
    let relay = Relay::start(&config, &identity.expect("read")).expect("started");
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(connect(&relay).await);
    }
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(200),
        maximum,
    };
    setrlimit(Resource::Nofile, few).expect("lowered");
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    // One is left for the newcomer's own end, and none for the relay's.
    drop(taken.pop());
    let served = async {
        let mut newcomer = connect(&relay).await;
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        newcomer.write_all(request).await.expect("sent");
        let mut answer = [0; 9];
        newcomer.read_exact(&mut answer).await.expect("answered");
        assert_eq!(&answer, b"HTTP/1.1 ");
        drop(idle[0].read_to_end(&mut Vec::new()).await);
    };
    timeout(PATIENCE, served).await.expect("served in time");
    drop(taken);
}
