//! IP packets through one relay and more, over QUIC and where UDP is blocked, in a namespace in which anybody may ping.

use hoplite_overlay::{
    Terms,
    conformance::{self, Subject},
};
use hoplite_testing::namespace::with_echoes;
use hoplite_wire::{Host, connect_ip::Scope};

use crate::support::{subject, subject_without_udp};

/// Runs the suite's packets over a subject that must carry them.
fn over(subject: impl FnOnce() -> Subject + Send + 'static) {
    with_echoes(move || async move {
        let subject = subject();
        let scope = Scope::flow(&Host::ip([127, 0, 0, 1].into()), 1);
        let terms = Terms::default();
        let opened = subject.overlay.open_packets(&scope, &terms).await;
        opened.expect("a flow of packets");
        conformance::echoes_come_back_as_they_went(&subject).await;
        conformance::packets_that_break_a_rule_are_dropped(&subject).await;
    });
}

#[test]
fn echoes_come_back_through_one_relay() {
    over(|| subject(1));
}

#[test]
fn echoes_come_back_through_three_relays() {
    over(|| subject(3));
}

#[test]
fn echoes_come_back_as_capsules_where_udp_is_blocked() {
    over(|| subject_without_udp(1));
}

#[test]
fn echoes_come_back_through_two_relays_where_udp_is_blocked() {
    over(|| subject_without_udp(2));
}
