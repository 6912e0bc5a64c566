//! What the transparent front end did, as numbers: no address, no name, nothing about a single flow.
//! The binary shows a [`Snapshot`] in its status and metrics.

use crate::counters::counters;

counters! {
    /// Packets from programs. One that the kernel left to us to cut counts once.
    packets_in;
    /// Bytes of packets from programs, headers included.
    bytes_in;
    /// Packets to programs. One that is left to the kernel to cut counts once.
    packets_out;
    /// Bytes of packets to programs, headers included.
    bytes_out;
    /// Packets to programs that the device had no room for.
    queue_full;
    /// Packets to programs that the device refused: it is down or gone.
    refused;
    /// Packets that are none, or whose transport header is none.
    malformed;
    /// Packets whose checksum is wrong.
    bad_checksum;
    /// Packets from an address that is not the device's.
    foreign;
    /// Packets to addresses that nobody has alone: multicast, loopback, link-local and the like.
    unroutable;
    /// Fragments dropped.
    fragments;
    /// Packets dropped for their options or extension headers.
    options;
    /// Packets of other protocols that could not be carried, either way.
    other_dropped;
    /// Packets of other protocols (ICMP echo first of all) carried from programs.
    other_up;
    /// Packets of other protocols carried to programs.
    other_down;
    /// Flows of such packets begun.
    packets_opened;
    /// Flows of such packets over, for whatever reason.
    packets_closed;
    /// ICMP errors told to programs.
    errors_told;
    /// TCP connections begun.
    tcp_opened;
    /// TCP connections over, for whatever reason.
    tcp_closed;
    /// SYNs dropped because no slot or no memory was left and nothing could be evicted.
    tcp_dropped;
    /// TCP connections evicted for another while they were being opened.
    tcp_evicted;
    /// Open TCP connections evicted for another when all slots were taken.
    tcp_rested;
    /// TCP connections reset since nobody took their bytes while memory was short.
    tcp_stalled;
    /// TCP connections reset since no segment came for `flows.idle_stream`.
    tcp_idle;
    /// Bytes of TCP payload from programs that streams took.
    tcp_up;
    /// Bytes of TCP payload from streams to programs.
    tcp_down;
    /// UDP flows begun.
    udp_opened;
    /// UDP flows over, for whatever reason.
    udp_closed;
    /// UDP flows evicted for another.
    udp_evicted;
    /// Bytes of UDP payload from programs to targets.
    udp_up;
    /// Bytes of UDP payload from targets to programs.
    udp_down;
    /// Datagrams from programs that were dropped: full queues, flows that failed.
    udp_dropped;
    /// Datagrams from programs that were larger than the path carries.
    udp_too_big;
    /// Flows to an address that meant a name once and means nothing any more.
    expired;
    /// DNS queries from programs, whatever became of them.
    dns_queries;
    /// DNS queries that could not be read.
    dns_malformed;
    /// DNS queries for which the far end was asked.
    dns_asked;
    /// DNS queries for which the far end was asked and failed, or was not believed.
    dns_failed;
    /// DNS queries that failed since too many were being asked: the one that came, or one of another user.
    dns_crowded;
    /// DNS queries for which no temporary address was left: the far end was asked instead.
    dns_exhausted;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_every_number_once() {
        let counters = Counters::default();
        counters.malformed.add(3);
        let all = counters.snapshot().all();
        assert!(all.contains(&("malformed", 3)));
        let mut names: Vec<_> = all.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}
