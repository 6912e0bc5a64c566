use proptest::prelude::*;

use super::*;

fn acks() -> impl Strategy<Value = Acks> {
    prop_oneof![
        Just(Acks::Auto),
        Just(Acks::Default),
        Just(Acks::Extension),
        Just(Acks::Never),
        (1000_u64..=250_000).prop_map(|micros| Acks::After(Duration::from_micros(micros))),
        (10_u16..=4000).prop_map(|share| Acks::Share(Share(share))),
    ]
}

fn congestion() -> impl Strategy<Value = Congestion> {
    use Congestion::{Auto, Bbr, Cubic, NewReno, Off};
    prop::sample::select(vec![Auto, Cubic, Bbr, NewReno, Off])
}

fn wishes() -> impl Strategy<Value = Wishes> {
    let all = (acks(), acks(), any::<u16>(), congestion());
    all.prop_map(|(up, down, after, congestion)| Wishes {
        up,
        down,
        after,
        congestion,
    })
}

fn grants() -> impl Strategy<Value = Grants> {
    (acks(), any::<bool>()).prop_map(|(acks, no_acks)| Grants { acks, no_acks })
}

proptest! {
    #[test]
    fn wishes_and_grants_survive_the_wire(wishes in wishes(), grants in grants()) {
        prop_assert!(wishes.encode() <= crate::varint::MAX && grants.encode() <= crate::varint::MAX);
        prop_assert_eq!(Wishes::decode(wishes.encode()), Some(wishes));
        prop_assert_eq!(Grants::decode(grants.encode()), Some(grants));
    }

    #[test]
    fn any_value_is_read_without_a_panic_and_means_one_thing(value in 0..=crate::varint::MAX) {
        if let Some(wishes) = Wishes::decode(value) {
            prop_assert_eq!(wishes.encode(), value);
        }
        if let Some(grants) = Grants::decode(value) {
            prop_assert_eq!(grants.encode(), value);
        }
    }

    #[test]
    fn a_relay_that_allows_no_silence_is_never_met_with_it(wishes in wishes(), acks in acks()) {
        let agreed = wishes.granted(Grants { acks, no_acks: false });
        prop_assert!(agreed.up != Acks::Never && agreed.down != Acks::Never);
        prop_assert!(agreed.congestion != Congestion::Off);
    }

    #[test]
    fn names_of_policies_are_read_back(acks in acks()) {
        prop_assert_eq!(acks.to_string().parse(), Ok(acks));
    }
}

#[test]
fn a_policy_is_a_name_a_delay_or_a_share_within_bounds() {
    let after = |micros| Ok(Acks::After(Duration::from_micros(micros)));
    assert_eq!("default".parse(), Ok(Acks::Default));
    assert_eq!("none".parse(), Ok(Acks::Never));
    assert_eq!("1ms".parse(), after(1000));
    assert_eq!("2.5 ms".parse(), after(2500));
    assert_eq!("250ms".parse(), after(250_000));
    assert_eq!("0.25rtt".parse(), Ok(Acks::Share(Share(250))));
    assert_eq!("4rtt".parse(), Ok(Acks::Share(Share(4000))));
    for wrong in [
        "", "ms", "rtt", "0.9ms", "251ms", "1", "1s", "-1ms", "nanms", "infms", "1e300ms",
        "0.001rtt", "5rtt", "-1rtt", "nanrtt", "infrtt", "Default", "none-up", "never",
    ] {
        assert_eq!(wrong.parse::<Acks>(), Err(NotAcks), "{wrong}");
    }
    assert_eq!(Wishes::both("none-up"), Ok((Acks::Never, Acks::Default)));
    assert_eq!(
        Wishes::both("1ms"),
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
    let asked = Wishes::default().for_hop(true);
    assert_eq!((asked.up, asked.down), (Acks::Never, Acks::Never));
    assert_eq!(Wishes::default().for_hop(false), Wishes::default());
    let fixed = Wishes {
        up: Acks::Default,
        ..Wishes::default()
    };
    assert_eq!(fixed.for_hop(true).up, Acks::Default);
}

#[test]
fn a_relay_with_a_policy_of_its_own_keeps_it_and_the_client_knows() {
    let grants = Grants {
        acks: Acks::Default,
        no_acks: true,
    };
    let agreed = Wishes::default().for_hop(true).granted(grants);
    assert_eq!((agreed.up, agreed.down), (Acks::Default, Acks::Never));
    assert!(agreed.refused.up && !agreed.refused.down);
    assert!(!Wishes::default().granted(Grants::default()).refused.any());
}

#[test]
fn a_plain_relay_is_acknowledged_and_asked_for_nothing() {
    let agreed = Wishes::default().for_hop(true).alone();
    assert_eq!((agreed.up, agreed.down), (Acks::Default, Acks::Auto));
    assert!(agreed.refused.up && agreed.refused.down);
    assert!(!Wishes::default().alone().refused.any());
}

#[test]
fn a_delay_never_exceeds_what_was_said_when_the_connection_began() {
    let delay = |policy: &str, rtt| {
        let policy: Acks = policy.parse().unwrap();
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
    assert_eq!("auto".parse::<Acks>().unwrap().delay(None), None);
}
