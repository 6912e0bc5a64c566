//! The table for the terminal.

use std::fmt;

use super::{Fetches, Figures, Packets, Summary};

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            relays,
            clients,
            hops,
            channel,
            loss,
            lossless_targets,
            seed,
            virtual_s,
            ..
        } = self;
        let spared = match lossless_targets {
            true => " but none to targets",
            false => "",
        };
        writeln!(
            f,
            "{relays} relays, {clients} clients, {hops} hops over {channel}, loss {loss}{spared}, seed {seed}, {virtual_s:.0} virtual seconds"
        )?;
        writeln!(
            f,
            "{:24}{:>8}{:>11}{:>11}{:>11}{:>11}",
            "", "n", "median", "95 %", "99 %", "most"
        )?;
        for fetches in &self.fetches {
            let name = fetches.workload;
            row(f, &format!("{name}: first octet, s"), &fetches.ttfb_s)?;
            row(f, &format!("{name}: last octet, s"), &fetches.ttlb_s)?;
        }
        row(f, "circuit built, s", &self.circuit_s)?;
        row(f, "relay's line used", &self.relay_use)?;
        if self.outage_s.n > 0 {
            row(f, "longest without octets, s", &self.outage_s)?;
        }
        for fetches in &self.fetches {
            let Fetches {
                workload,
                n,
                done,
                failed,
                running,
                stalled,
                ..
            } = fetches;
            let ratio = fetches.ttfb_p99_over_median;
            writeln!(
                f,
                "{workload}: {n} fetches, {done} done, {failed} failed, {running} not over; {stalled} without an octet for 10 s; first octet's 99 % is {ratio:.2} medians"
            )?;
        }
        let Packets {
            sent,
            lost,
            queue_full,
            ..
        } = self.packets;
        let failed = self.circuits_failed;
        writeln!(
            f,
            "{failed} circuits not built; {sent} packets, {lost} lost, {queue_full} dropped by full queues"
        )?;
        match self.faults.is_empty() {
            true => writeln!(f, "no fault of a channel"),
            false => writeln!(f, "faults of channels: {:?}", self.faults),
        }
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, figures: &Figures) -> fmt::Result {
    let Figures {
        n,
        median,
        p95,
        p99,
        max,
    } = figures;
    writeln!(
        f,
        "{name:24}{n:>8}{median:>11.3}{p95:>11.3}{p99:>11.3}{max:>11.3}"
    )
}
