//! What follows from wishes and grants: both ends compute the same.

use super::{Acks, Congestion, Grants, Wishes};

/// How a connection is tuned, as both ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// When the relay acknowledges what the client sends.
    pub up: Acks,
    /// When the client acknowledges what the relay sends.
    pub down: Acks,
    /// A delay begins after so many packets.
    pub after: u16,
    /// The congestion control of both ends; [`Congestion::Auto`] is none at an end whose datagrams are not acknowledged, while no stream runs.
    pub congestion: Congestion,
    /// What the relay did not grant.
    pub refused: Refused,
}

/// Which wishes were not granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// How the relay acknowledges.
    pub up: bool,
    /// That the client does not acknowledge.
    pub down: bool,
    /// That there is no congestion control.
    pub congestion: bool,
}

impl Wishes {
    /// What is asked of a relay. `carrier`: the connection only carries the link to the next relay, whose own connection controls itself and
    /// acknowledges: nothing of that is worth doing twice.
    #[must_use]
    pub fn for_hop(self, carrier: bool) -> Self {
        let suited = |acks| match acks {
            Acks::Auto if carrier => Acks::Never,
            acks => acks,
        };
        Self {
            up: suited(self.up),
            down: suited(self.down),
            ..self
        }
    }

    /// What both ends do when the relay grants this.
    #[must_use]
    pub fn granted(self, grants: Grants) -> Agreed {
        let allowed = |acks| match acks {
            Acks::Never if !grants.no_acks => Acks::Auto,
            acks => acks,
        };
        let up = match grants.acks {
            Acks::Auto | Acks::Never => allowed(self.up),
            fixed => fixed,
        };
        let (down, off) = (allowed(self.down), self.congestion == Congestion::Off);
        let refused = Refused {
            up: up != self.up,
            down: down != self.down,
            congestion: off && !grants.no_acks,
        };
        Agreed {
            up,
            down,
            after: self.after,
            congestion: match refused.congestion {
                true => Congestion::Auto,
                false => self.congestion,
            },
            refused,
        }
    }

    /// What a client does alone, with a relay that knows nothing of this. That relay's congestion control needs acknowledgements.
    #[must_use]
    pub fn alone(self) -> Agreed {
        let down = match self.down {
            Acks::Never => Acks::Auto,
            acks => acks,
        };
        Agreed {
            up: Acks::Default,
            down,
            after: self.after,
            congestion: self.congestion,
            refused: Refused {
                up: !matches!(self.up, Acks::Auto | Acks::Default | Acks::Extension),
                down: down != self.down,
                congestion: false,
            },
        }
    }
}

impl Agreed {
    /// Both ends as their QUIC stacks are: what a connection begins with.
    pub const PLAIN: Self = Self {
        up: Acks::Default,
        down: Acks::Default,
        after: 0,
        congestion: Congestion::Auto,
        refused: Refused {
            up: false,
            down: false,
            congestion: false,
        },
    };
}

impl Refused {
    /// Whether anything was.
    #[must_use]
    pub const fn any(self) -> bool {
        self.up || self.down || self.congestion
    }
}
