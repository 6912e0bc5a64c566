//! What every overlay must do with flows of IP packets, if it carries any. Packets may be lost: each check sends again until the answer is there.
//! Part of [`super`].

use std::{net::IpAddr, time::Duration};

use hoplite_wire::{
    Host,
    connect_ip::Scope,
    ip::{
        self,
        icmp::{self, Echo},
    },
};
use tokio::time::timeout;

use super::{Subject, hangs, pattern, soon};
use crate::{ErrorKind, Packets, Terms};

/// How long a reply may take before the request is sent again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a request is sent.
const ATTEMPTS: usize = 20;

/// What an echo is known by.
type Told = (u16, u16, Vec<u8>);

impl Subject {
    /// A flow of echoes to the far host; `None` if there are none, which is said.
    async fn echoes(&self) -> Option<(Box<dyn Packets>, IpAddr, IpAddr)> {
        let far = self.far.host();
        let scope = Scope::flow(&Host::ip(far), ip::icmp_of(far));
        let terms = Terms::default();
        let opening = self.overlay.open_packets(&scope, &terms);
        match soon("opening a flow of packets", opening).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                skipped(&error);
                None
            }
            opened => {
                let flow = opened.expect("opens");
                let near = flow.source(far).expect("an address");
                Some((flow, near, far))
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test says why it checked nothing")]
fn skipped(error: &crate::Error) {
    eprintln!("skipped: no IP packets here: {error:?}");
}

/// The next echo reply.
async fn reply(flow: &dyn Packets, from: IpAddr, to: IpAddr) -> Told {
    let mut buf = vec![0; 65_535];
    loop {
        let received = flow.recv(&mut buf).await.expect("receives");
        let packet = ip::parse(&buf[..received.len.min(received.segment)]).expect("a packet");
        assert!(packet.checksum_is_right(), "a wrong checksum");
        assert_eq!((packet.source, packet.destination), (from, to));
        if let Some(echo) = icmp::echo(&packet).filter(|echo| echo.reply) {
            return (echo.identifier, echo.sequence, echo.payload.to_vec());
        }
    }
}

/// Sends an echo request until its reply is there; late replies to earlier ones are passed over.
async fn echoed(flow: &dyn Packets, near: IpAddr, far: IpAddr, told: &Told) {
    let (identifier, sequence, payload) = told;
    let echo = Echo {
        reply: false,
        identifier: *identifier,
        sequence: *sequence,
        payload,
    };
    for _ in 0..ATTEMPTS {
        flow.send(&echo.packet(near, far)).await.expect("sends");
        while let Ok(back) = timeout(AGAIN, reply(flow, far, near)).await {
            if back == *told {
                return;
            }
        }
    }
    hangs("an echo")
}

/// What was sent comes back, to whoever sent it: identifier, sequence number and payload.
pub async fn echoes_come_back_as_they_went(subject: &Subject) {
    let _known = subject.far.bind().await.expect("a host");
    let Some((flow, near, far)) = subject.echoes().await else {
        return;
    };
    assert!(flow.mtu() >= 1280, "IPv6 does not fit through");
    for (identifier, sequence, size) in [(7, 1, 56), (8, 1, 56), (7, 2, 0), (0, 0, 1), (7, 3, 1200)]
    {
        echoed(&*flow, near, far, &(identifier, sequence, pattern(size))).await;
    }
}

/// A source that was not assigned and a destination off the routes get no answer, nonsense hurts nobody.
pub async fn packets_that_break_a_rule_are_dropped(subject: &Subject) {
    let _known = subject.far.bind().await.expect("a host");
    let Some((flow, near, far)) = subject.echoes().await else {
        return;
    };
    let forged = |sequence| Echo {
        reply: false,
        identifier: 7,
        sequence,
        payload: b"forged",
    };
    let elsewhere: [IpAddr; 2] = match far {
        IpAddr::V4(_) => [[192, 0, 2, 77].into(), [127, 0, 0, 99].into()],
        IpAddr::V6(_) => ["2001:db8::77", "::1"].map(|ip| ip.parse().expect("an address")),
    };
    for packet in [
        forged(1).packet(elsewhere[0], far),
        forged(2).packet(far, far),
        forged(3).packet(near, elsewhere[1]),
        vec![],
        vec![0x45],
        vec![0xff; 100],
    ] {
        flow.send(&packet).await.expect("dropped, not an error");
    }
    let right = (7, 9, b"right".to_vec());
    echoed(&*flow, near, far, &right).await;
    let more = timeout(Duration::from_millis(50), reply(&*flow, far, near)).await;
    let is_right = |told: Told| told.2 == b"right";
    assert!(more.map_or(true, is_right), "a forged packet was answered");
}
