//! What somebody sees of sizes who watches the client's link, with padding and without.

use std::{sync::Arc, task::Poll};

use hoplite_masque::{Config, Path};
use hoplite_overlay::{Direct, Overlay, Received, Terms};
use hoplite_relay::config::Pad;
use hoplite_testing::{
    Double,
    path::through,
    relay::{config, start},
    soon, targets,
};
use parking_lot::Mutex;

/// Programs' datagrams have this many bytes.
const SMALL: usize = 10;
/// What every path carries (RFC 9000 §14).
const FULL: usize = 1200;
const TURNS: usize = 40;

/// The sizes of packets with a short header: up and down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scales(Arc<Mutex<[Vec<usize>; 2]>>);

impl Scales {
    /// How many there were.
    pub(crate) fn count(&self) -> [usize; 2] {
        self.0.lock().each_ref().map(Vec::len)
    }

    fn weigh(&self, way: usize, payloads: &[u8], segment: usize) {
        let short = payloads
            .chunks(segment.max(1))
            .filter(|packet| packet[0] & 0x80 == 0);
        let mut seen = self.0.lock();
        seen[way].extend(short.map(<[u8]>::len));
    }
}

/// The device's own sockets, weighed.
pub(crate) fn weighed(scales: &Scales) -> Arc<dyn Overlay> {
    let scales = scales.clone();
    let overlay = Double::over(Direct::new()).flows(move |flow| {
        let (up, down) = (scales.clone(), scales.clone());
        flow.sends(move |below, cx, batch| {
            let sent = below.poll_send(cx, batch);
            if sent.is_ready() {
                up.weigh(0, batch.contents, batch.segment);
            }
            sent
        })
        .receives(move |below, cx, buf| {
            let received = below.poll_recv(cx, buf);
            if let Poll::Ready(Ok(Received { len, segment })) = received {
                down.weigh(1, &buf[..len], segment);
            }
            received
        })
    });
    Arc::new(overlay)
}

/// Small datagrams, there and back: how many small packets and how many full ones were seen, up and down.
async fn seen(hops: usize, pad: bool) -> [(usize, usize); 2] {
    let mut served = config();
    let pad = if pad { Pad::Full } else { Pad::Off };
    served.tunnel.pad = pad;
    let relays: Vec<_> = (0..hops).map(|_| start(&served)).collect();
    let scales = Scales::default();
    let client = Config {
        pad,
        ..Config::default()
    };
    let path = through(&relays, &weighed(&scales), client);
    path.connect().await.expect("connected");
    *scales.0.lock() = Default::default();
    echo(&path).await;
    let seen = scales.0.lock();
    [&seen[0], &seen[1]].map(|sizes| {
        let full = sizes.iter().filter(|size| **size >= FULL).count();
        (sizes.len() - full, full)
    })
}

async fn echo(path: &Path) {
    let target = targets::udp_echo().await.into();
    let flow = path.open_datagrams(&target, &Terms::default()).await;
    let flow = flow.expect("open");
    let mut buffer = [0; 2000];
    for _ in 0..TURNS {
        flow.send(&[7; SMALL]).await.expect("sent");
        soon(flow.recv(&mut buffer)).await.expect("answered");
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
