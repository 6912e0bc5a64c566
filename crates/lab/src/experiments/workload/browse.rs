//! Visits of a browser to pages that the lab makes: what is loaded ([`pages`]), what is kept of a visit ([`visit`]), by which browser.
//! Pure; `run::browse` starts the browser and `run::pages` serves.

pub mod pages;
pub mod visit;

use std::{net::Ipv4Addr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// What a browser is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Browse {
    /// Which one.
    pub browser: BrowserName,
    /// How many pages of the set, from the first one on.
    pub pages: u32,
    /// How often each; all pages once, then all again.
    pub visits: u32,
    /// Which set: not the repetition's seed, for all repetitions visit the same pages.
    pub seed: u64,
    /// From a browser's start to its visit: it looks after itself meanwhile.
    pub settle: Duration,
}

impl Browse {
    /// The page of a visit, both counted from 1.
    #[must_use]
    pub fn page_of(&self, number: u32) -> u32 {
        number.saturating_sub(1) % self.pages.max(1) + 1
    }

    /// How often the page of a visit was visited with it.
    #[must_use]
    pub fn round_of(&self, number: u32) -> u32 {
        number.saturating_sub(1) / self.pages.max(1) + 1
    }

    /// All visits.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.pages.saturating_mul(self.visits)
    }
}

/// A browser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BrowserName {
    /// Firefox ESR, or Firefox where that is not there.
    #[default]
    Firefox,
    /// Chromium.
    Chromium,
}

impl BrowserName {
    /// The programs that are it, the first one that is there is taken.
    #[must_use]
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Firefox => &["firefox-esr", "firefox"],
            Self::Chromium => &["chromedriver"],
        }
    }

    /// Debian's packages of what it takes.
    #[must_use]
    pub fn packages(self) -> &'static str {
        match self {
            Self::Firefox => "firefox-esr",
            Self::Chromium => "chromium chromium-driver",
        }
    }
}

/// What a browser's workload finds around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// The certificate, as PEM, that signs those of the pages' hosts.
    pub authority: PathBuf,
    /// An empty directory for profiles.
    pub scratch: PathBuf,
    /// Where HAR files go, if they are wanted.
    pub har: Option<PathBuf>,
}

/// What a server of pages has to know, told by the variable [`Served::VARIABLE`] as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Where the authority's certificate and key are.
    pub authority: PathBuf,
    /// Where all of the pages' names are.
    pub address: Ipv4Addr,
}

impl Served {
    /// Of the environment of `__serve`.
    pub const VARIABLE: &str = "HOPLITE_LAB_PAGES";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_visited_once_before_any_is_visited_again() {
        let browse = Browse {
            browser: BrowserName::Firefox,
            pages: 3,
            visits: 2,
            seed: 1,
            settle: Duration::ZERO,
        };
        let visits = (1..=browse.count()).map(|i| (browse.round_of(i), browse.page_of(i)));
        let all: Vec<_> = visits.collect();
        assert_eq!(all, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]);
    }
}
