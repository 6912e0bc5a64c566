//! What a network interface has counted: every byte, both ways, headers and all, as Linux tells it below `/sys/class/net`.

use std::{fs, io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// A network interface.
#[derive(Clone, Debug)]
pub(crate) struct Interface(PathBuf);

/// What an interface had counted at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counter {
    /// The machine's run, and the interface's number in it: another one counts from 0.
    run: String,
    bytes: u64,
}

impl Interface {
    /// The one of this name; it need not be there.
    pub(crate) fn new(name: &str) -> Self {
        Self(PathBuf::from("/sys/class/net").join(name))
    }

    /// Now.
    ///
    /// # Errors
    /// There is no such interface.
    pub(crate) fn counter(&self) -> io::Result<Counter> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let number = fs::read_to_string(self.0.join("ifindex"))?;
        let count = |way: &str| -> io::Result<u64> {
            let text = fs::read_to_string(self.0.join("statistics").join(way))?;
            text.trim().parse().map_err(io::Error::other)
        };
        Ok(Counter {
            run: format!("{}/{}", boot.trim(), number.trim()),
            bytes: count("rx_bytes")?.saturating_add(count("tx_bytes")?),
        })
    }
}

impl Counter {
    /// Bytes since it began to count.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that went over it since `before`; not known if that was another run's, or if it counts from 0 again.
    pub(crate) fn since(&self, before: &Self) -> Option<u64> {
        (self.run == before.run)
            .then(|| self.bytes.checked_sub(before.bytes))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_gone_says_so_and_one_that_began_anew_is_not_compared() {
        assert!(Interface::new("nothing-here").counter().is_err());
        let counter = |run: &str, bytes| Counter {
            run: run.into(),
            bytes,
        };
        assert_eq!(counter("a", 9).since(&counter("a", 4)), Some(5));
        assert_eq!(counter("a", 3).since(&counter("a", 4)), None);
        assert_eq!(counter("b", 9).since(&counter("a", 4)), None);
        let now = Interface::new("lo").counter().unwrap();
        assert!(now.since(&now) == Some(0));
    }
}
