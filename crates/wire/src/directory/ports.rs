//! To which ports an egress connects: the summary of its policy that path selection needs. Written `80,443,8000-8100`.

use std::{fmt, str::FromStr};

/// Ranges of ports in order, apart from each other, at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ports(Vec<(u16, u16)>);

/// Ranges of one relay.
const RANGES: usize = 64;

impl Ports {
    /// Every port.
    pub fn all() -> Self {
        Self(vec![(1, u16::MAX)])
    }

    /// All ports but these.
    pub fn except(closed: &[u16]) -> Option<Self> {
        let mut closed: Vec<u16> = closed.iter().copied().filter(|port| *port != 0).collect();
        closed.sort_unstable();
        let (mut open, mut from) = (Vec::new(), Some(1u16));
        for port in closed {
            let Some(start) = from else { break };
            if start < port {
                open.push((start, port.saturating_sub(1)));
            }
            from = port.checked_add(1).map(|next| next.max(start));
        }
        open.extend(from.map(|start| (start, u16::MAX)));
        Self::of(open)
    }

    /// All that are not among them.
    pub fn others(&self) -> Option<Self> {
        let (mut open, mut from) = (Vec::new(), Some(1u16));
        for (low, high) in &self.0 {
            let start = from.filter(|start| start < low);
            open.extend(start.map(|start| (start, low.saturating_sub(1))));
            from = high.checked_add(1);
        }
        open.extend(from.map(|start| (start, u16::MAX)));
        Self::of(open)
    }

    /// Whether `port` is among them.
    pub fn contains(&self, port: u16) -> bool {
        let mut ranges = self.0.iter();
        ranges.any(|(low, high)| (*low..=*high).contains(&port))
    }

    fn of(ranges: Vec<(u16, u16)>) -> Option<Self> {
        let bounded = (1..=RANGES).contains(&ranges.len());
        let ordered = ranges.iter().all(|(low, high)| 0 < *low && low <= high);
        let apart = ranges.windows(2).all(|pair| match pair {
            [(_, before), (low, _)] => before.checked_add(1).is_some_and(|next| next < *low),
            _ => true,
        });
        (bounded && ordered && apart).then_some(Self(ranges))
    }
}

fn range(text: &str) -> Option<(u16, u16)> {
    match text.split_once('-') {
        Some((low, high)) => Some((low.parse().ok()?, high.parse().ok()?)),
        None => text.parse().ok().map(|port| (port, port)),
    }
}

impl FromStr for Ports {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let ranges: Option<Vec<_>> = text.split(',').take(RANGES + 1).map(range).collect();
        ranges.and_then(Self::of).ok_or(())
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (low, high)) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match low == high {
                true => write!(f, "{low}")?,
                false => write!(f, "{low}-{high}")?,
            }
        }
        Ok(())
    }
}
