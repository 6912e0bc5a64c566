//! Path bias: how many circuits through a guard come about and are of use, to notice one that has them fail until their other relays suit it.
//! path-spec "Detecting route manipulation by Guard nodes". [`crate::Guards`] has one count for each guard, the caller says how circuits fare.
//!
//! Who says so has to see to it that a stranger adds nothing: circuits whose last relay somebody else has chosen are not counted, or who names dead
//! relays would take a client from its guards. Nor is what a guard cannot choose by: that it cannot be reached, and that circuits are lost with
//! its channel while they stand ready.
//!
//! C tor asks a circuit that it closes without an answer for one (a "probe"). Here a circuit is bad without a probe if no answer came for longer than
//! any honest relay takes.
//!
//! Unlike C tor we count a circuit once the guard itself has answered, not once the second relay has. Onion services have four second relays, and
//! a guard that is out for one of them would else never be noticed. And we begin to judge by 50 circuits instead of 150: C tor builds some hundred a
//! day only to have them, our clients one for each ten minutes of use. An honest guard of a network in which every fifth circuit fails shows a rate
//! below [`WARN`] in 50 once in ten million times.

#[cfg(test)]
mod tests;

use hoplite_wire::CircuitFate;

/// Circuits by which building is judged at first (`pb_mincircs`).
const MIN_CIRCUITS: u32 = 50;
/// Beyond so many all counts are halved, so that what is long ago counts for less (`pb_scalecircs`, `pb_multfactor`).
const SCALE_CIRCUITS: u32 = 100;
/// Uses by which they are judged at first (`pb_minuse`).
const MIN_USES: u32 = 20;
/// Beyond so many their counts are halved (`pb_scaleuse`).
const SCALE_USES: u32 = 100;

// Percent of circuits that should come about, or else the guard is suspect to that degree (`pb_noticepct`, `pb_warnpct`, `pb_extremepct`).
const NOTICE: u32 = 70;
const WARN: u32 = 50;
const EXTREME: u32 = 30;
// The same of those that were used (`pb_noticeusepct`, `pb_extremeusepct`).
const NOTICE_USE: u32 = 80;
const EXTREME_USE: u32 = 60;

/// What a guard is suspected of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspicion {
    /// Nothing.
    #[default]
    None,
    /// More circuits fail than should: the relay, or the network, has too much to do.
    Notice,
    /// So many that somebody may be choosing.
    Warn,
    /// Nearly all but those that somebody may have chosen.
    Extreme,
}

/// The counts of one guard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathBias {
    /// Circuits that were to be built.
    pub circuits: u32,
    /// And were.
    pub built: u32,
    /// Circuits that were to be used.
    pub uses: u32,
    /// And were of use.
    pub used: u32,
    /// It is not used any more.
    pub barred: bool,
}

impl PathBias {
    /// A circuit fares so.
    pub fn note(&mut self, fate: CircuitFate) {
        match fate {
            CircuitFate::Built => {
                self.circuits = self.circuits.saturating_add(1);
                self.built = self.built.saturating_add(1);
            }
            CircuitFate::NotBuilt => self.circuits = self.circuits.saturating_add(1),
            CircuitFate::Collapsed => self.built = self.built.saturating_sub(1),
            CircuitFate::Used => {
                self.uses = self.uses.saturating_add(1);
                self.used = self.used.saturating_add(1);
            }
            CircuitFate::NotUsed => self.uses = self.uses.saturating_add(1),
        }
        if self.circuits > SCALE_CIRCUITS {
            (self.circuits, self.built) = (self.circuits / 2, self.built / 2);
        }
        if self.uses > SCALE_USES {
            (self.uses, self.used) = (self.uses / 2, self.used / 2);
        }
    }

    /// What these counts say.
    pub fn suspicion(&self) -> Suspicion {
        let by_circuits = match percent(self.built, self.circuits, MIN_CIRCUITS) {
            None | Some(NOTICE..) => Suspicion::None,
            Some(WARN..) => Suspicion::Notice,
            Some(EXTREME..) => Suspicion::Warn,
            Some(_) => Suspicion::Extreme,
        };
        let by_uses = match percent(self.used, self.uses, MIN_USES) {
            None | Some(NOTICE_USE..) => Suspicion::None,
            Some(EXTREME_USE..) => Suspicion::Notice,
            Some(_) => Suspicion::Extreme,
        };
        by_circuits.max(by_uses)
    }
}

/// How many percent, if they are enough to tell.
fn percent(good: u32, all: u32, least: u32) -> Option<u32> {
    let hundredfold = good.saturating_mul(100);
    hundredfold.checked_div(all).filter(|_| all >= least)
}
