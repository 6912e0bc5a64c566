//! Pages over loopback, as a browser that trusts the authority meets them.

use std::{net::SocketAddr, sync::Arc};

use hoplite_wire::{
    HostName, RequestHead,
    dns::RecordType,
    h3::{Frame, write_headers},
};
use http_body_util::{BodyExt, Empty};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::experiments::workload::run::testing::block_on;

/// Servers on any ports, with a directory of their authority.
struct Site {
    directory: tempfile::TempDir,
    https: u16,
    dns: SocketAddr,
}

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

fn site() -> Site {
    let directory = tempfile::tempdir().unwrap();
    make_authority(directory.path()).unwrap();
    let served = Served {
        authority: directory.path().into(),
        address: ADDRESS,
    };
    let server = Server::bind(&served, Ports { https: 0, dns: 0 }).unwrap();
    let https = server.https.local_addr().unwrap().port();
    let dns = ([127, 0, 0, 1], server.dns.local_addr().unwrap().port()).into();
    tokio::spawn(server.run());
    Site {
        directory,
        https,
        dns,
    }
}

impl Site {
    fn trusting(&self, alpn: &[&[u8]]) -> ClientConfig {
        let pem = fs::read(certificate_of(self.directory.path())).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&pem).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(provider());
        let mut config = builder
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config
    }

    async fn connect(&self, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(("127.0.0.1", self.https)).await?;
        let config = self.trusting(&[ALPN_H2, ALPN_HTTP1]);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }
}

fn alpn(stream: &TlsStream<TcpStream>) -> &[u8] {
    stream.get_ref().1.alpn_protocol().unwrap_or_default()
}

#[test]
fn a_host_has_a_certificate_of_its_own_that_the_authority_signs() {
    block_on(async {
        let site = site();
        let one = site.connect("www1.h2.pages.test").await.unwrap();
        let other = site.connect("t1.h2.pages.test").await.unwrap();
        let leaf = |stream: &TlsStream<TcpStream>| {
            let chain = stream.get_ref().1.peer_certificates().unwrap();
            x509_serial(&chain[0])
        };
        assert_ne!(
            leaf(&one),
            leaf(&other),
            "browsers refuse two with one number"
        );
        for name in ["server.test", "pages.test", "www1.h9.pages.test"] {
            assert!(site.connect(name).await.is_err(), "{name}");
        }
    });
}

/// The serial number: `SEQUENCE { SEQUENCE { [0] version, INTEGER serial`.
fn x509_serial(certificate: &CertificateDer<'_>) -> Vec<u8> {
    let bytes = certificate.as_ref();
    let version = bytes
        .windows(5)
        .position(|part| part == [0xa0, 3, 2, 1, 2])
        .unwrap();
    let rest = &bytes[version + 5..];
    assert_eq!(rest[0], 2, "an INTEGER");
    rest[2..2 + usize::from(rest[1])].to_vec()
}

#[test]
fn a_host_speaks_the_versions_that_its_name_says() {
    block_on(async {
        let site = site();
        let old = site.connect("www1.h1.pages.test").await.unwrap();
        assert_eq!(alpn(&old), ALPN_HTTP1);
        for name in ["www1.h2.pages.test", "www1.h3.pages.test"] {
            assert_eq!(alpn(&site.connect(name).await.unwrap()), ALPN_H2);
        }
    });
}

async fn fetch1(site: &Site, host: &str, path: &str) -> (http::response::Parts, Bytes) {
    let stream = site.connect(host).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut requests, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(path).header("host", host);
    let answer = requests.send_request(request.body(Empty::<Bytes>::new()).unwrap());
    let (head, body) = answer.await.unwrap().into_parts();
    (head, body.collect().await.unwrap().to_bytes())
}

#[test]
fn an_object_comes_as_the_page_has_it_and_tells_who_asked() {
    block_on(async {
        let (site, page) = (site(), Page::draw(1, 4));
        for (object, of) in page.objects.iter().enumerate().take(6) {
            let path = format!("/1/4/{object}");
            let (head, body) = fetch1(&site, "www4.h1.pages.test", &path).await;
            assert_eq!(head.status, 200);
            assert_eq!(head.headers["x-seen-as"], "127.0.0.1");
            assert!(!head.headers.contains_key("alt-svc"));
            assert_eq!(
                Some((
                    head.headers["content-type"].to_str().unwrap(),
                    body.to_vec()
                )),
                page.body(object),
                "{:?}",
                of.kind
            );
        }
        for path in ["/", "/1/4/9999", "/1/0/0", "/x/4/0"] {
            let (head, _) = fetch1(&site, "www4.h1.pages.test", path).await;
            assert_eq!(head.status, 404, "{path}");
        }
    });
}

#[test]
fn http2_serves_the_same_and_announces_http3_where_the_name_says_so() {
    block_on(async {
        let (site, page) = (site(), Page::draw(1, 4));
        for (host, announced) in [("www4.h2.pages.test", false), ("www4.h3.pages.test", true)] {
            let stream = site.connect(host).await.unwrap();
            let (requests, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut requests = requests.ready().await.unwrap();
            let request = http::Request::get(format!("https://{host}/1/4/0")).body(());
            let (answer, _) = requests.send_request(request.unwrap(), true).unwrap();
            let (head, mut body) = answer.await.unwrap().into_parts();
            assert_eq!(head.headers.contains_key("alt-svc"), announced);
            let mut came = Vec::new();
            while let Some(data) = body.data().await {
                came.extend_from_slice(&data.unwrap());
            }
            assert_eq!(Some(came), page.body(0).map(|(_, body)| body));
        }
    });
}

#[test]
fn http3_serves_the_same() {
    block_on(async {
        let (site, page) = (site(), Page::draw(1, 4));
        let crypto = site.trusting(&[ALPN_H3]);
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(crypto).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        let peer = ([127, 0, 0, 1], site.https).into();
        let host = "www4.h3.pages.test";
        let connection = endpoint
            .connect_with(config, peer, host)
            .unwrap()
            .await
            .unwrap();
        let (mut to, from) = connection.open_bi().await.unwrap();
        let request = RequestHead {
            method: "GET".into(),
            protocol: None,
            scheme: Some("https".into()),
            authority: host.into(),
            path: Some("/1/4/0".into()),
            headers: Vec::new(),
        };
        let mut out = BytesMut::new();
        write_headers(&mut out, &request.encode());
        to.write_all(&out).await.unwrap();
        to.finish().unwrap();
        let mut frames = h3::Frames::new(from, IDLE);
        let mut came = Vec::new();
        while let Some(frame) = frames.next().await.unwrap() {
            match frame {
                Frame::Headers(section) => {
                    let head = ResponseHead::decode(&section, h3::FIELDS).unwrap();
                    assert_eq!(head.status, 200);
                }
                Frame::Data(data) => came.extend_from_slice(&data),
                _ => {}
            }
        }
        assert_eq!(Some(came), page.body(0).map(|(_, body)| body));
    });
}

#[test]
fn the_dns_knows_the_names_of_pages_and_no_others() {
    block_on(async {
        let site = site();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let ask = async |name: &str, kind| {
            let name = HostName::new(name).unwrap();
            let question = Question::new(&name, kind);
            socket.send_to(&question.message(), site.dns).await.unwrap();
            let mut answer = [0; 600];
            let (length, _) = socket.recv_from(&mut answer).await.unwrap();
            question.heard(&answer[..length]).unwrap()
        };
        let found = ask("www1.h2.pages.test", RecordType::A).await;
        assert_eq!(found, (Code::NO_ERROR, vec![ADDRESS.into()]));
        let other = ask("www1.h2.pages.test", RecordType::AAAA).await;
        assert_eq!(other, (Code::NO_ERROR, vec![]));
        let unknown = ask("example.org", RecordType::A).await;
        assert_eq!(unknown, (Code::NO_NAME, vec![]));
    });
}
