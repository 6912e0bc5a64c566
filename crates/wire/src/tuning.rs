//! How the two ends of a tunnel tune the connection between them: what the client wishes, what the relay grants, what follows.
//! Configuration files have it as text; HTTP/3 carries it as one private setting (no specification has it).
//! "Up" is what the client sends, "down" what the relay sends.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

/// The shortest and the longest delay of an acknowledgement. Below, QUIC stacks refuse; above, timers of the sender fire in vain.
pub const DELAYS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(250);

/// The smallest and the largest share of a round trip, in thousandths.
const SHARES: RangeInclusive<u16> = 10..=4000;

/// When one end acknowledges what the other sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckPolicy {
    /// As suits what the connection carries.
    #[default]
    Auto,
    /// As the QUIC stack does: every second packet, or after 25 ms.
    Stack,
    /// So long after the first packet that wants it, however many come in between.
    After(Duration),
    /// After this share of the round trip.
    Share(Share),
    /// As the sender asks by ACK_FREQUENCY (draft-ietf-quic-ack-frequency).
    Extension,
    /// Datagrams are not acknowledged, but for a probe now and then; everything else is.
    NoAcks,
}

/// A share of the round trip, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

/// Which congestion control the sender of a tunnel's packets has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// As suits what the connection carries: RFC 9438 where packets are acknowledged, none where they are not and no stream runs.
    #[default]
    Auto,
    /// RFC 9438.
    Cubic,
    /// A model of bandwidth and round trip.
    Bbr,
    /// RFC 9002 §7.
    NewReno,
    /// None, and no pacing: what the tunnel carries must control itself.
    Off,
}

/// Not a congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\", \"cubic\", \"bbr\", \"newreno\" or \"off\"")]
pub struct NotCongestion;

impl Congestion {
    /// What is written for each.
    pub const NAMES: &'static [&'static str] = &["auto", "cubic", "bbr", "newreno", "off"];
}

impl FromStr for Congestion {
    type Err = NotCongestion;

    fn from_str(text: &str) -> Result<Self, NotCongestion> {
        match text {
            "auto" => Ok(Self::Auto),
            "cubic" => Ok(Self::Cubic),
            "bbr" => Ok(Self::Bbr),
            "newreno" => Ok(Self::NewReno),
            "off" => Ok(Self::Off),
            _ => Err(NotCongestion),
        }
    }
}

/// What a client asks for. [`Default`] is what suits best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningRequest {
    /// When the relay acknowledges what the client sends.
    pub up: AckPolicy,
    /// When the client acknowledges what the relay sends.
    pub down: AckPolicy,
    /// A delay begins after this many packets: until then a connection learns what the path carries.
    pub after: u16,
    /// The congestion control of both ends.
    pub congestion: Congestion,
}

/// What a relay grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningGrant {
    /// When it acknowledges, whatever clients ask for; [`AckPolicy::Auto`]: as they ask.
    pub acks: AckPolicy,
    /// Whether datagrams may go without acknowledgement, and either end without congestion control.
    pub no_acks: bool,
}

/// Not a way to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"none\", {}", AckPolicy::EXPECTED)]
pub struct NotAnAckPolicy;

impl Default for TuningRequest {
    fn default() -> Self {
        Self {
            up: AckPolicy::Auto,
            down: AckPolicy::Auto,
            after: 100,
            congestion: Congestion::Auto,
        }
    }
}

impl Default for TuningGrant {
    fn default() -> Self {
        Self {
            acks: AckPolicy::Auto,
            no_acks: true,
        }
    }
}

impl TuningRequest {
    /// The same wish for both directions; `"none-up"` is for studies: nothing that the client sends is acknowledged, the rest as usual.
    ///
    /// # Errors
    /// The text is none of those.
    pub fn both(text: &str) -> Result<(AckPolicy, AckPolicy), NotAnAckPolicy> {
        match text {
            "none-up" => Ok((AckPolicy::NoAcks, AckPolicy::Stack)),
            _ => text.parse().map(|acks| (acks, acks)),
        }
    }
}

impl Share {
    /// Rare enough to be cheap, and soon enough that a sender goes on.
    pub const QUARTER: Self = Self(250);

    /// So much of this round trip.
    #[must_use]
    pub fn of(self, rtt: Duration) -> Duration {
        let share = rtt.saturating_mul(u32::from(self.0));
        share.checked_div(1000).unwrap_or_default()
    }

    fn new(thousandths: u16) -> Option<Self> {
        SHARES.contains(&thousandths).then_some(Self(thousandths))
    }
}

/// A share is one of a round trip of so much at most: what a delay may come to must be known before the round trip is.
const LONG_RTT: Duration = Duration::from_millis(100);

/// What QUIC stacks allow when nothing else was said (RFC 9000 §18.2), and the most of an automatic delay.
pub const DEFAULT_MAX_ACK_DELAY: Duration = Duration::from_millis(25);

impl AckPolicy {
    /// What is written for a policy, beside "none", which clients alone ask for.
    pub const EXPECTED: &'static str = "\"auto\", \"default\", \"extension\", a delay from \"1ms\" to \"250ms\", \
        or a share of the round trip from \"0.01rtt\" to \"4rtt\"";

    /// How long an acknowledgement may be held back by this policy.
    #[must_use]
    pub fn longest(self) -> Duration {
        match self {
            Self::After(delay) => delay,
            Self::Share(share) => share
                .of(LONG_RTT)
                .clamp(DEFAULT_MAX_ACK_DELAY, *DELAYS.end()),
            _ => DEFAULT_MAX_ACK_DELAY,
        }
    }

    /// How long it is held back on a path with this round trip, if it is known; `None`: as the QUIC stack likes.
    #[must_use]
    pub fn delay(self, rtt: Option<Duration>) -> Option<Duration> {
        let delay = match self {
            Self::Stack | Self::Extension => return None,
            Self::After(delay) => delay,
            Self::Share(share) => share.of(rtt?),
            Self::Auto | Self::NoAcks => Share::QUARTER.of(rtt?),
        };
        Some(delay.min(self.longest()).max(*DELAYS.start()))
    }
}

impl FromStr for AckPolicy {
    type Err = NotAnAckPolicy;

    fn from_str(text: &str) -> Result<Self, NotAnAckPolicy> {
        match text {
            "auto" => Ok(Self::Auto),
            "default" => Ok(Self::Stack),
            "extension" => Ok(Self::Extension),
            "none" => Ok(Self::NoAcks),
            _ => delay(text).or_else(|| share(text)).ok_or(NotAnAckPolicy),
        }
    }
}

fn delay(text: &str) -> Option<AckPolicy> {
    let milliseconds: f64 = text.strip_suffix("ms")?.trim_end().parse().ok()?;
    let delay = Duration::try_from_secs_f64(milliseconds / 1000.0).ok()?;
    DELAYS.contains(&delay).then_some(AckPolicy::After(delay))
}

fn share(text: &str) -> Option<AckPolicy> {
    let share: f64 = text.strip_suffix("rtt")?.trim_end().parse().ok()?;
    let thousandths = (share * 1000.0).round();
    let all = f64::from(*SHARES.start())..=f64::from(*SHARES.end());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within 16 bits"
    )]
    let share = all.contains(&thousandths).then_some(thousandths as u16)?;
    Share::new(share).map(AckPolicy::Share)
}

impl fmt::Display for AckPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Stack => f.write_str("default"),
            Self::After(delay) => write!(f, "{}ms", delay.as_secs_f64() * 1000.0),
            Self::Share(share) => write!(f, "{}rtt", f64::from(share.0) / 1000.0),
            Self::Extension => f.write_str("extension"),
            Self::NoAcks => f.write_str("none"),
        }
    }
}

// What follows from wishes and grants: both ends compute the same.

/// How a connection is tuned, as both ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// When the relay acknowledges what the client sends.
    pub up: AckPolicy,
    /// When the client acknowledges what the relay sends.
    pub down: AckPolicy,
    /// A delay begins after this many packets.
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

impl TuningRequest {
    /// What is asked of a relay. `carries_next_hop`: the connection only carries the link to the next relay, whose own connection controls itself and
    /// acknowledges: nothing of that is worth doing twice.
    #[must_use]
    pub fn for_hop(self, carries_next_hop: bool) -> Self {
        let suited = |acks| match acks {
            AckPolicy::Auto if carries_next_hop => AckPolicy::NoAcks,
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
    pub fn granted(self, grants: TuningGrant) -> Agreed {
        let allowed = |acks| match acks {
            AckPolicy::NoAcks if !grants.no_acks => AckPolicy::Auto,
            acks => acks,
        };
        let up = match grants.acks {
            AckPolicy::Auto | AckPolicy::NoAcks => allowed(self.up),
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
            congestion: if refused.congestion {
                Congestion::Auto
            } else {
                self.congestion
            },
            refused,
        }
    }

    /// What a client does alone, with a relay that knows nothing of this. That relay's congestion control needs acknowledgements.
    #[must_use]
    pub fn alone(self) -> Agreed {
        let down = match self.down {
            AckPolicy::NoAcks => AckPolicy::Auto,
            acks => acks,
        };
        Agreed {
            up: AckPolicy::Stack,
            down,
            after: self.after,
            congestion: self.congestion,
            refused: Refused {
                up: !matches!(
                    self.up,
                    AckPolicy::Auto | AckPolicy::Stack | AckPolicy::Extension
                ),
                down: down != self.down,
                congestion: false,
            },
        }
    }
}

impl Agreed {
    /// Both ends as their QUIC stacks are: what a connection begins with.
    pub const PLAIN: Self = Self {
        up: AckPolicy::Stack,
        down: AckPolicy::Stack,
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

// Requests and grants as the value of a setting: 62 bits, of which the highest three are zero in this version.
// A value of another version, or of one that means nothing, is read as if there were none: such a peer is treated as a plain one.

/// How many bits an [`AckPolicy`] takes: two for its kind, 18 for microseconds or thousandths.
const BITS: u32 = 20;

const NUMBER: u64 = (1 << 18) - 1;

const DELAY: u64 = 1;

const SHARE: u64 = 2;

const NAMES: [AckPolicy; 4] = [
    AckPolicy::Auto,
    AckPolicy::Stack,
    AckPolicy::Extension,
    AckPolicy::NoAcks,
];

const CONTROLS: [Congestion; 5] = [
    Congestion::Auto,
    Congestion::Cubic,
    Congestion::Bbr,
    Congestion::NewReno,
    Congestion::Off,
];

/// Where each part of a value begins, in bits.
mod at {
    pub(super) const DOWN: u32 = super::BITS;
    pub(super) const AFTER: u32 = 2 * super::BITS;
    pub(super) const CONGESTION: u32 = AFTER + 16;
    pub(super) const NO_ACKS: u32 = super::BITS;
}

impl AckPolicy {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::After(delay) => (DELAY, u64::try_from(delay.as_micros()).unwrap_or(NUMBER)),
            Self::Share(Share(thousandths)) => (SHARE, u64::from(thousandths)),
            name => (0, position(&NAMES, name)),
        };
        kind << 18 | number.min(NUMBER)
    }

    fn decode(code: u64) -> Option<Self> {
        let (kind, number) = (code >> 18 & 3, code & NUMBER);
        match kind {
            0 => NAMES.get(usize::try_from(number).ok()?).copied(),
            DELAY => {
                let delay = Duration::from_micros(number);
                DELAYS.contains(&delay).then_some(Self::After(delay))
            }
            SHARE => Share::new(u16::try_from(number).ok()?).map(Self::Share),
            _ => None,
        }
    }
}

fn position<T: PartialEq + Copy>(all: &[T], one: T) -> u64 {
    let found = all.iter().position(|other| *other == one);
    found.and_then(|at| u64::try_from(at).ok()).unwrap_or(0)
}

impl TuningRequest {
    /// The setting's value.
    #[must_use]
    pub fn encode(self) -> u64 {
        self.up.encode()
            | self.down.encode() << at::DOWN
            | u64::from(self.after) << at::AFTER
            | position(&CONTROLS, self.congestion) << at::CONGESTION
    }

    /// What a setting's value asks for; `None` for one that means nothing here.
    #[must_use]
    pub fn decode(value: u64) -> Option<Self> {
        let control = usize::try_from(value >> at::CONGESTION).ok()?;
        Some(Self {
            up: AckPolicy::decode(value)?,
            down: AckPolicy::decode(value >> at::DOWN)?,
            after: u16::try_from(value >> at::AFTER & 0xffff).ok()?,
            congestion: CONTROLS.get(control).copied()?,
        })
    }
}

impl TuningGrant {
    /// The setting's value.
    #[must_use]
    pub fn encode(self) -> u64 {
        self.acks.encode() | u64::from(self.no_acks) << at::NO_ACKS
    }

    /// What a setting's value grants; `None` for one that means nothing here.
    #[must_use]
    pub fn decode(value: u64) -> Option<Self> {
        let no_acks = match value >> at::NO_ACKS {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            acks: AckPolicy::decode(value)?,
            no_acks,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn acks() -> impl Strategy<Value = AckPolicy> {
        prop_oneof![
            Just(AckPolicy::Auto),
            Just(AckPolicy::Stack),
            Just(AckPolicy::Extension),
            Just(AckPolicy::NoAcks),
            (1000_u64..=250_000).prop_map(|micros| AckPolicy::After(Duration::from_micros(micros))),
            (10_u16..=4000).prop_map(|share| AckPolicy::Share(Share(share))),
        ]
    }

    fn congestion() -> impl Strategy<Value = Congestion> {
        use Congestion::{Auto, Bbr, Cubic, NewReno, Off};
        prop::sample::select(vec![Auto, Cubic, Bbr, NewReno, Off])
    }

    fn wishes() -> impl Strategy<Value = TuningRequest> {
        let all = (acks(), acks(), any::<u16>(), congestion());
        all.prop_map(|(up, down, after, congestion)| TuningRequest {
            up,
            down,
            after,
            congestion,
        })
    }

    fn grants() -> impl Strategy<Value = TuningGrant> {
        (acks(), any::<bool>()).prop_map(|(acks, no_acks)| TuningGrant { acks, no_acks })
    }

    proptest! {
        #[test]
        fn wishes_and_grants_survive_the_wire(wishes in wishes(), grants in grants()) {
            prop_assert!(wishes.encode() <= crate::varint::MAX && grants.encode() <= crate::varint::MAX);
            prop_assert_eq!(TuningRequest::decode(wishes.encode()), Some(wishes));
            prop_assert_eq!(TuningGrant::decode(grants.encode()), Some(grants));
        }

        #[test]
        fn any_value_is_read_without_a_panic_and_means_one_thing(value in 0..=crate::varint::MAX) {
            if let Some(wishes) = TuningRequest::decode(value) {
                prop_assert_eq!(wishes.encode(), value);
            }
            if let Some(grants) = TuningGrant::decode(value) {
                prop_assert_eq!(grants.encode(), value);
            }
        }

        #[test]
        fn a_relay_that_allows_no_silence_is_never_met_with_it(wishes in wishes(), acks in acks()) {
            let agreed = wishes.granted(TuningGrant { acks, no_acks: false });
            prop_assert!(agreed.up != AckPolicy::NoAcks && agreed.down != AckPolicy::NoAcks);
            prop_assert!(agreed.congestion != Congestion::Off);
        }

        #[test]
        fn names_of_policies_are_read_back(acks in acks()) {
            prop_assert_eq!(acks.to_string().parse(), Ok(acks));
        }
    }

    #[test]
    fn a_policy_is_a_name_a_delay_or_a_share_within_bounds() {
        let after = |micros| Ok(AckPolicy::After(Duration::from_micros(micros)));
        assert_eq!("default".parse(), Ok(AckPolicy::Stack));
        assert_eq!("none".parse(), Ok(AckPolicy::NoAcks));
        assert_eq!("1ms".parse(), after(1000));
        assert_eq!("2.5 ms".parse(), after(2500));
        assert_eq!("250ms".parse(), after(250_000));
        assert_eq!("0.25rtt".parse(), Ok(AckPolicy::Share(Share(250))));
        assert_eq!("4rtt".parse(), Ok(AckPolicy::Share(Share(4000))));
        for wrong in [
            "", "ms", "rtt", "0.9ms", "251ms", "1", "1s", "-1ms", "nanms", "infms", "1e300ms",
            "0.001rtt", "5rtt", "-1rtt", "nanrtt", "infrtt", "Default", "none-up", "never",
        ] {
            assert_eq!(wrong.parse::<AckPolicy>(), Err(NotAnAckPolicy), "{wrong}");
        }
        assert_eq!(
            TuningRequest::both("none-up"),
            Ok((AckPolicy::NoAcks, AckPolicy::Stack))
        );
        assert_eq!(
            TuningRequest::both("1ms"),
            Ok(("1ms".parse().unwrap(), "1ms".parse().unwrap()))
        );
    }

    #[test]
    fn a_share_is_of_the_round_trip() {
        let share = Share(250);
        assert_eq!(
            share.of(Duration::from_millis(100)),
            Duration::from_millis(25)
        );
        assert_eq!(share.of(Duration::MAX), Duration::MAX / 1000);
    }

    #[test]
    fn automatic_means_silence_only_where_another_link_is_carried() {
        let asked = TuningRequest::default().for_hop(true);
        assert_eq!(
            (asked.up, asked.down),
            (AckPolicy::NoAcks, AckPolicy::NoAcks)
        );
        assert_eq!(
            TuningRequest::default().for_hop(false),
            TuningRequest::default()
        );
        let fixed = TuningRequest {
            up: AckPolicy::Stack,
            ..TuningRequest::default()
        };
        assert_eq!(fixed.for_hop(true).up, AckPolicy::Stack);
    }

    #[test]
    fn a_relay_with_a_policy_of_its_own_keeps_it_and_the_client_knows() {
        let grants = TuningGrant {
            acks: AckPolicy::Stack,
            no_acks: true,
        };
        let agreed = TuningRequest::default().for_hop(true).granted(grants);
        assert_eq!(
            (agreed.up, agreed.down),
            (AckPolicy::Stack, AckPolicy::NoAcks)
        );
        assert!(agreed.refused.up && !agreed.refused.down);
        assert!(
            !TuningRequest::default()
                .granted(TuningGrant::default())
                .refused
                .any()
        );
    }

    #[test]
    fn a_plain_relay_is_acknowledged_and_asked_for_nothing() {
        let agreed = TuningRequest::default().for_hop(true).alone();
        assert_eq!(
            (agreed.up, agreed.down),
            (AckPolicy::Stack, AckPolicy::Auto)
        );
        assert!(agreed.refused.up && agreed.refused.down);
        assert!(!TuningRequest::default().alone().refused.any());
    }

    #[test]
    fn a_delay_never_exceeds_what_was_said_when_the_connection_began() {
        let delay = |policy: &str, rtt| {
            let policy: AckPolicy = policy.parse().unwrap();
            let delay = policy.delay(Some(Duration::from_millis(rtt)));
            assert!(delay.is_none_or(|delay| delay <= policy.longest()));
            delay.map(|delay| delay.as_millis())
        };
        assert_eq!(delay("default", 40), None);
        assert_eq!(delay("extension", 40), None);
        assert_eq!(delay("250ms", 40), Some(250));
        assert_eq!(
            (delay("0.25rtt", 40), delay("0.25rtt", 400)),
            (Some(10), Some(25))
        );
        assert_eq!(
            (delay("1rtt", 60), delay("1rtt", 400)),
            (Some(60), Some(100))
        );
        assert_eq!(delay("4rtt", 400), Some(250));
        assert_eq!(
            (delay("auto", 40), delay("none", 400), delay("auto", 0)),
            (Some(10), Some(25), Some(1))
        );
        assert_eq!("auto".parse::<AckPolicy>().unwrap().delay(None), None);
    }
}
