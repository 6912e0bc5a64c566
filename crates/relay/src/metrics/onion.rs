//! What circuits and channels count for themselves, read when somebody asks. Part of `/metrics`; nothing of it where `[onion]` is off.

use std::sync::{Arc, OnceLock, Weak, atomic::Ordering::Relaxed};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::onion::Onion;

/// Whose numbers are read, once there is somebody.
pub(super) type Source = Arc<OnceLock<Weak<Onion>>>;

#[derive(Debug)]
pub(super) struct Circuits(pub(super) Source);

impl Collector for Circuits {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(onion) = self.0.get().and_then(Weak::upgrade) else {
            return Ok(());
        };
        let counters = onion.counters();
        let circuits = [
            ("created", &counters.created),
            ("refused", &counters.refused),
            ("limited", &counters.limited),
            ("extended", &counters.extended),
            ("not_extended", &counters.not_extended),
            ("broken", &counters.broken),
        ];
        let circuits = circuits.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "What became of circuits";
        family(&mut encoder, "onion_circuits", help, circuits)?;
        let cells = [
            ("passed_forth", &counters.cells.passed_forth),
            ("passed_back", &counters.cells.passed_back),
            ("taken", &counters.cells.taken),
            ("made", &counters.cells.made),
        ];
        let cells = cells.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "Cells of circuits, 514 octets each";
        family(&mut encoder, "onion_cells", help, cells)?;
        let streams = [("opened", counters.streams.load(Relaxed))];
        family(
            &mut encoder,
            "onion_streams",
            "Streams of circuits to targets",
            streams,
        )?;
        let help = "What went wrong on channels";
        family(
            &mut encoder,
            "onion_channel_faults",
            help,
            onion.faults().all(),
        )?;
        let help = "Circuits open now";
        level(&mut encoder, "onion_circuits_open", help, onion.circuits())?;
        let help = "Channels to other relays open now, whoever dialled";
        level(
            &mut encoder,
            "onion_relay_channels_open",
            help,
            onion.channels(),
        )?;
        let waiting = usize::try_from(onion.faults().queued()).unwrap_or(usize::MAX);
        let help = "Octets that wait in all circuits, as the key queued counts them";
        level(&mut encoder, "onion_queued_octets", help, waiting)
    }
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> Result<(), std::fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (what, count) in counts {
        let count = ConstCounter::new(count);
        count.encode(family.encode_family(&[("what", what)])?)?;
    }
    Ok(())
}

fn level(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    now: usize,
) -> Result<(), std::fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(now).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
