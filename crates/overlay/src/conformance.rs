//! What every overlay must do, as functions that a test calls: [`crate::conformance_tests`] makes one test of each.
//! `direct`, `masque` and the in-memory network run it; the far end is [`Loopback`] or [`Memory`].
//! The functions panic when the overlay is wrong. None asserts on time; limits only end a test that hangs.

mod datagrams;
mod far;
mod names;
mod packets;
mod streams;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::timeout;

pub use self::{
    datagrams::*,
    far::{Far, FarListener, FarSocket, Loopback, Memory, Silent},
    names::*,
    packets::*,
    streams::*,
};
use crate::Overlay;

/// How long one test may take before it counts as hanging.
const HANGING: Duration = Duration::from_secs(60);

/// An overlay to be tested and the servers that it is to reach.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What is tested.
    pub overlay: Arc<dyn Overlay>,
    /// Where its flows end.
    pub far: Arc<dyn Far>,
}

impl Subject {
    /// An overlay and the servers that it can reach.
    pub fn new(overlay: Arc<dyn Overlay>, far: Arc<dyn Far>) -> Self {
        Self { overlay, far }
    }

    /// An overlay that reaches servers on this machine's loopback addresses.
    pub fn on_loopback(overlay: Arc<dyn Overlay>) -> Self {
        Self::new(overlay, Arc::new(Loopback))
    }
}

async fn soon<T>(doing: &str, what: impl Future<Output = T>) -> T {
    let done = timeout(HANGING, what).await;
    done.unwrap_or_else(|_| hangs(doing))
}

#[expect(
    clippy::panic,
    reason = "a conformance check fails by panicking, as a test does"
)]
fn hangs(doing: &str) -> ! {
    panic!("{doing} hangs")
}

/// Octets that differ from place to place, so that a shifted or doubled piece is noticed.
fn pattern(len: usize) -> Vec<u8> {
    let octet = |n: usize| (n ^ (n >> 8) ^ (n >> 16)).to_le_bytes()[0];
    (0..len).map(octet).collect()
}

/// One test for each function of the suite. The argument makes a fresh [`Subject`]; it may await.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        $crate::conformance_tests!($subject;
            a_mebibyte_is_echoed_unchanged
            the_opener_may_finish_first
            the_target_may_finish_first
            a_reset_by_the_target_is_an_error_and_not_an_end
            a_dropped_stream_is_reset_at_the_target
            a_refusing_target_is_named_as_refusing
            a_name_that_does_not_exist_is_reported_as_such
            a_silent_target_is_given_up_at_the_deadline
            a_slow_reader_pushes_back_on_the_target
            a_slow_target_pushes_back_on_the_writer
            an_early_stream_takes_octets_at_once
            an_early_stream_may_be_finished_at_once
            an_early_stream_hears_a_target_that_speaks_first
            an_early_stream_says_why_it_was_refused
            an_early_writer_is_told_of_a_refusal
            an_early_stream_to_a_silent_target_is_given_up
            many_streams_are_carried_at_once
            isolated_flows_are_carried
            datagrams_keep_their_boundaries
            a_batch_arrives_payload_by_payload
            an_oversized_datagram_is_never_split
            many_datagram_flows_are_carried_at_once
            echoes_come_back_as_they_went
            packets_that_break_a_rule_are_dropped
            a_resolver_repeats_id_and_question
            a_resolver_says_that_a_name_does_not_exist
            a_resolver_is_not_upset_by_rubbish
        );
    };
    ($subject:expr; $($name:ident)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::conformance::$name(&$subject).await;
            }
        )+
    };
}
