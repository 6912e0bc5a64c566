//! Rounds in which clients stalled: paper 004's tables 8.1 to 8.3. Clients that transfer at the same time make rounds: the first transfer of each is one, the
//! second of each the next. The thesis calls stalled what lies behind the bend of its curves; here it is a first byte that took several times as long as the
//! client's median in the same attempt, or did not come.

use std::collections::BTreeMap;

use super::statistics::median;
use crate::results::sample::WholeTransfer;

/// The share of rounds in which 0, 1, 2, … clients stalled, as figures `rounds_stalled_share:N`; of rounds that each client has. None without a round.
pub(super) fn rounds(transfers: &[WholeTransfer], above: u32) -> Vec<(String, f64)> {
    let mut clients: BTreeMap<&str, Vec<&WholeTransfer>> = BTreeMap::new();
    for transfer in transfers {
        let of = clients.entry(transfer.workload.as_str()).or_default();
        of.push(transfer);
    }
    let stalls: Vec<Vec<bool>> = clients.values().map(|of| stalled(of, above)).collect();
    let rounds = stalls.iter().map(Vec::len).min().unwrap_or(0);
    if rounds == 0 {
        return Vec::new();
    }
    let mut counts = vec![0_u32; stalls.len().saturating_add(1)];
    for round in 0..rounds {
        let stalled = stalls.iter().filter(|of| of.get(round) == Some(&true));
        if let Some(count) = counts.get_mut(stalled.count()) {
            *count += 1;
        }
    }
    let named = |(clients, count)| {
        let share = f64::from(count) / rounds as f64;
        (format!("rounds_stalled_share:{clients}"), share)
    };
    counts.into_iter().enumerate().map(named).collect()
}

/// Which of one client's transfers stalled, in order.
fn stalled(of: &[&WholeTransfer], above: u32) -> Vec<bool> {
    let first = |transfer: &&WholeTransfer| {
        let first = transfer.first_byte.filter(|_| !transfer.failed);
        first.map(|micros| micros as f64)
    };
    let times: Vec<f64> = of.iter().filter_map(first).collect();
    let usual = median(&times).unwrap_or(0.0);
    let is_late = |time: f64| time > f64::from(above) * usual;
    of.iter()
        .map(|transfer| first(transfer).is_none_or(is_late))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(workload: &str, number: u32, first_byte: Option<u64>) -> WholeTransfer {
        WholeTransfer {
            workload: workload.into(),
            number,
            failed: first_byte.is_none(),
            server: None,
            asked: [0; 2],
            moved: [0; 2],
            first_byte,
            last_byte: None,
            handshake: None,
            round_trips: Vec::new(),
            datagrams: [0; 2],
            more: BTreeMap::new(),
        }
    }

    /// A client's transfers one after the other, by what their first bytes took.
    fn client(name: &str, times: &[Option<u64>]) -> Vec<WholeTransfer> {
        let numbered = (1..).zip(times);
        numbered
            .map(|(number, time)| transfer(name, number, *time))
            .collect()
    }

    fn shares(transfers: &[WholeTransfer]) -> Vec<f64> {
        let found = rounds(transfers, 3);
        for (clients, (name, _)) in found.iter().enumerate() {
            assert_eq!(*name, format!("rounds_stalled_share:{clients}"));
        }
        found.into_iter().map(|(_, share)| share).collect()
    }

    #[test]
    fn a_first_byte_that_is_late_by_the_clients_own_median_or_does_not_come_is_a_stall() {
        let mut both = client("light", &[Some(100), Some(301), Some(90), None]);
        both.extend(client(
            "heavy",
            &[Some(900), Some(9000), Some(800), Some(1000)],
        ));
        assert_eq!(shares(&both), [0.5, 0.25, 0.25]);
    }

    #[test]
    fn rounds_are_those_of_whoever_has_fewest() {
        let mut both = client("light", &[Some(100); 10]);
        both.extend(client("heavy", &[Some(100), None]));
        assert_eq!(shares(&both), [0.5, 0.5, 0.0]);
        assert_eq!(shares(&[]), [0.0; 0]);
    }
}
