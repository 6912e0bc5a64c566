//! A relay whose process has no file descriptor left goes on accepting: idle connections make room. A process of its own, because the limit is the process's.

use std::{fs::File, sync::Arc};

use hoplite_crypto::{ALPN_HTTP1, Trust, client_tls};
use hoplite_relay::Handle;
use hoplite_testing::{PATIENCE, relay::relay, soon};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

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
    // Nothing ends by itself while the test lasts.
    let relay = relay(|config| {
        config.limits.shards = 1;
        config.limits.handshake = 10 * PATIENCE;
        config.limits.idle_connection = 10 * PATIENCE;
    });
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
    soon(served).await;
    drop(taken);
}
