//! What became of every packet: the network writes it down, tests see that nothing is made and nothing vanishes.

use super::Node;

/// Packets, and their octets with headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// Of which size together.
    pub octets: u64,
}

/// How a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was received.
    Received,
    /// It was lost on its way.
    Lost,
    /// A line's queue was full.
    QueueFull,
    /// Its sender or receiver is not there any more.
    NoHost,
    /// Nobody listens there.
    NoPort,
    /// Whoever listens takes no more.
    Overfull,
}

/// What became of everything that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All that was sent.
    pub sent: Count,
    /// What was received.
    pub received: Count,
    /// What was lost on its way.
    pub lost: Count,
    /// What a full queue dropped.
    pub queue_full: Count,
    /// What was for, or from, a node that is gone.
    pub no_host: Count,
    /// What nobody listened for.
    pub no_port: Count,
    /// What its receiver had no room for.
    pub overfull: Count,
    /// What is under way.
    pub under_way: Count,
    /// What each node sent and received.
    pub nodes: Vec<(Count, Count)>,
    /// Made of when each packet was sent, by whom, to whom, and how large: two runs that have the same were the same.
    pub trace: u64,
}

/// The ledger while it is written.
#[derive(Debug, Default)]
pub(super) struct Books(Ledger);

impl Count {
    fn add(&mut self, octets: u64) {
        self.packets += 1;
        self.octets += octets;
    }
}

impl Ledger {
    /// Whether all that was sent is somewhere.
    pub fn is_balanced(&self) -> bool {
        let ends = [
            self.received,
            self.lost,
            self.queue_full,
            self.no_host,
            self.no_port,
            self.overfull,
            self.under_way,
        ];
        let packets: u64 = ends.iter().map(|count| count.packets).sum();
        let octets: u64 = ends.iter().map(|count| count.octets).sum();
        self.sent == Count { packets, octets }
    }
}

impl Books {
    pub(super) fn add_node(&mut self) {
        self.0.nodes.push(<(Count, Count)>::default());
    }

    pub(super) fn sent(&mut self, from: Node, to: Node, octets: u64, now: u64) {
        let ends = [from.0, to.0].map(|node| u64::try_from(node).unwrap_or(u64::MAX));
        for number in [now, octets].into_iter().chain(ends) {
            // FNV-1a, by numbers instead of octets, and rotated so that high bits reach low ones.
            self.0.trace = (self.0.trace ^ number)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(29);
        }
        self.0.sent.add(octets);
        if let Some((sent, _)) = self.0.nodes.get_mut(from.0) {
            sent.add(octets);
        }
    }

    pub(super) fn end(&mut self, fate: Fate, to: Node, octets: u64) {
        let ledger = &mut self.0;
        let count = match fate {
            Fate::Received => &mut ledger.received,
            Fate::Lost => &mut ledger.lost,
            Fate::QueueFull => &mut ledger.queue_full,
            Fate::NoHost => &mut ledger.no_host,
            Fate::NoPort => &mut ledger.no_port,
            Fate::Overfull => &mut ledger.overfull,
        };
        count.add(octets);
        let receiver = ledger.nodes.get_mut(to.0);
        if let (Fate::Received, Some((_, received))) = (fate, receiver) {
            received.add(octets);
        }
    }

    pub(super) fn ledger(&self, under_way: impl Iterator<Item = u64>) -> Ledger {
        let mut ledger = self.0.clone();
        under_way.for_each(|octets| ledger.under_way.add(octets));
        ledger
    }
}
