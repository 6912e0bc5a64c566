//! Why a descriptor or a list is not believed. Each says what to do: users read it as it is.

use hoplite_wire::directory::Malformed;

/// Why a document is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It cannot be read.
    #[error("it cannot be read ({0}): ask for it elsewhere, or update this program")]
    Malformed(#[from] Malformed),
    /// Too few of the known authorities have signed it as it is.
    #[error(
        "forged: {good} known authorities have signed it, {needed} are needed: somebody has changed it on the way or made it up; ask another authority, \
         and compare `authorities` with what its operators publish"
    )]
    Forged {
        /// Good signatures of known authorities.
        good: usize,
        /// How many there must be.
        needed: usize,
    },
    /// Its time is over.
    #[error(
        "stale: it could be used until {ago} seconds ago: the authorities make no new one, or somebody keeps it from you; check this machine's clock, then try again"
    )]
    Stale {
        /// For how long, in seconds.
        ago: u64,
    },
    /// Its time has not begun.
    #[error("early: it begins in {ahead} seconds: this machine's clock is probably slow; set it")]
    Early {
        /// In how many seconds.
        ahead: u64,
    },
    /// An older one than was seen before.
    #[error(
        "rolled back: it is {by} seconds older than the list that is kept: somebody shows you the past; ask another authority"
    )]
    RolledBack {
        /// By how much, in seconds.
        by: u64,
    },
    /// Another list for the same time is as well signed.
    #[error(
        "split: authorities have signed two different lists for the same time: neither is used, the last list before them is as long as it holds; report it to their operators with both lists, which are kept"
    )]
    Split,
    /// A descriptor whose signature is not that of the key it names.
    #[error("the descriptor's signature is not that of its key: sign it again")]
    Unsigned,
}
