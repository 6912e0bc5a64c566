//! What somebody sees of sizes who watches the client's link, with padding and without.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use hoplite_masque::{Config as ClientConfig, Path};
use hoplite_overlay::{
    Batch, Datagrams, Error, Opening, Overlay, Received, Stream, Terms, direct::Direct,
};
use hoplite_relay::{Relay, config::Pad};
use hoplite_wire::Target;
use tokio::{net::UdpSocket, time::timeout};

use crate::support::{config, identity, known};

/// Programs' datagrams have so many bytes.
const SMALL: usize = 10;
/// What every path carries (RFC 9000 §14).
const FULL: usize = 1200;
const TURNS: usize = 40;

/// The sizes of packets with a short header: up and down.
#[derive(Clone, Debug, Default)]
struct Scales(Arc<Mutex<[Vec<usize>; 2]>>);

impl Scales {
    fn weigh(&self, way: usize, payloads: &[u8], segment: usize) {
        let short = payloads
            .chunks(segment.max(1))
            .filter(|packet| packet[0] & 0x80 == 0);
        let mut seen = self.0.lock().expect("sound");
        seen[way].extend(short.map(<[u8]>::len));
    }
}

/// The device's own sockets, weighed.
#[derive(Debug)]
struct Weighed {
    direct: Direct,
    scales: Scales,
}

struct Flow {
    flow: Box<dyn Datagrams>,
    scales: Scales,
}

impl Overlay for Weighed {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        self.direct.open_stream(target, terms)
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let flow = self.direct.open_datagrams(target, terms).await?;
            let scales = self.scales.clone();
            Ok(Box::new(Flow { flow, scales }) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.direct.resolve(name, terms)
    }
}

impl Datagrams for Flow {
    fn max_payload(&self) -> usize {
        self.flow.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        let sent = self.flow.poll_send(cx, batch);
        if sent.is_ready() {
            self.scales.weigh(0, batch.contents, batch.segment);
        }
        sent
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let received = self.flow.poll_recv(cx, buf);
        if let Poll::Ready(Ok(Received { len, segment })) = received {
            self.scales.weigh(1, &buf[..len], segment);
        }
        received
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flow")
    }
}

/// Small datagrams, there and back: how many small packets and how many full ones were seen, up and down.
async fn seen(hops: usize, pad: bool) -> [(usize, usize); 2] {
    let mut served = config();
    served.tunnel.pad = if pad { Pad::Full } else { Pad::Off };
    let start = |_| Relay::start(&served, &identity()).expect("started");
    let relays: Vec<_> = (0..hops).map(start).collect();
    let numbered = relays.iter().enumerate();
    let relays = numbered.map(|(n, relay)| known(&format!("r{n}"), relay));
    let scales = Scales::default();
    let below = Weighed {
        direct: Direct::new(),
        scales: scales.clone(),
    };
    let mut client = ClientConfig::default();
    client.link.pad = pad;
    let path = Path::new(relays.collect(), &(Arc::new(below) as _), &Arc::new(client));
    let path = path.expect("a path");
    path.connect().await.expect("connected");
    *scales.0.lock().expect("sound") = Default::default();
    echo(&path).await;
    let seen = scales.0.lock().expect("sound");
    [&seen[0], &seen[1]].map(|sizes| {
        let full = sizes.iter().filter(|size| **size >= FULL).count();
        (sizes.len() - full, full)
    })
}

async fn echo(path: &Path) {
    let target = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = target.local_addr().expect("bound").into();
    let flow = path.open_datagrams(&address, &Terms::default()).await;
    let flow = flow.expect("open");
    let mut buffer = [0; 2000];
    for _ in 0..TURNS {
        flow.send(&[7; SMALL]).await.expect("sent");
        let turn = async {
            let (len, from) = target.recv_from(&mut buffer).await.expect("received");
            target.send_to(&buffer[..len], from).await.expect("sent");
            flow.recv(&mut buffer).await.expect("answered");
        };
        timeout(Duration::from_secs(20), turn).await.expect("soon");
    }
}

#[tokio::test]
async fn sizes_tell_nothing_when_both_ends_pad() {
    for hops in [1, 2] {
        for (small, full) in seen(hops, true).await {
            assert!(full >= TURNS, "{full} full packets");
            // Loss probes of a machine that is slow are not padded.
            assert!(small <= TURNS / 4, "{small} small packets");
        }
    }
}

#[tokio::test]
async fn without_padding_a_small_datagram_makes_a_small_packet() {
    for (small, full) in seen(1, false).await {
        assert!(small >= TURNS, "{small} small packets");
        // The search for the path's packet size goes on meanwhile.
        assert!(full <= TURNS / 4, "{full} full packets");
    }
}
