use proptest::prelude::*;

use super::*;

/// Ids that count up, and places that are left.
struct Counting(u8, std::rc::Rc<()>, usize);

impl Default for Counting {
    fn default() -> Self {
        Self(0, std::rc::Rc::default(), usize::MAX)
    }
}

impl IdSource for Counting {
    type Place = std::rc::Rc<()>;

    fn place(&mut self) -> Option<Self::Place> {
        let taken = std::rc::Rc::strong_count(&self.1) - 1;
        (taken < self.2).then(|| self.1.clone())
    }

    fn target(&mut self) -> AliasId {
        self.0 += 1;
        [self.0; 8]
    }

    fn client(&mut self, len: usize) -> Option<ConnectionId> {
        self.0 = self.0.wrapping_add(1);
        ConnectionId::new(&vec![self.0; len])
    }
}

/// A table and what makes its ids.
struct Table(Registrations<std::rc::Rc<()>>, Counting);

fn table(ids: usize) -> Table {
    Table(Registrations::new(ids), Counting::default())
}

fn bytes(id: &[u8]) -> Bytes {
    Bytes::copy_from_slice(id)
}

impl Table {
    fn take(&mut self, capsule: Capsule) -> Vec<Step> {
        self.0.handle(capsule, &mut self.1)
    }

    fn client(&mut self, id: &[u8]) -> Vec<Step> {
        self.take(Capsule::RegisterClientCid { id: bytes(id) })
    }

    fn target(&mut self, id: &[u8]) -> Vec<Step> {
        let reset_token = Bytes::new();
        let id = bytes(id);
        self.take(Capsule::RegisterTargetCid { id, reset_token })
    }

    fn acknowledge(&mut self, id: &[u8], virtual_id: &[u8]) -> Vec<Step> {
        self.take(Capsule::AckClientVcid {
            id: bytes(id),
            virtual_id: bytes(virtual_id),
            reset_token: Bytes::new(),
        })
    }

    fn forwarded(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let ids = self.0.clients();
        ids.map(|(id, alias)| (id.to_vec(), alias.to_vec()))
            .collect()
    }
}

fn ack_client(id: &[u8], virtual_id: &[u8]) -> Step {
    Step::Send(Capsule::AckClientCid {
        id: bytes(id),
        virtual_id: bytes(virtual_id),
    })
}

fn entered(id: &[u8], alias: AliasId) -> [Step; 2] {
    let reset_token = Bytes::new();
    let acknowledge = Capsule::AckTargetCid {
        id: bytes(id),
        virtual_id: bytes(&alias),
        reset_token,
    };
    let id = ConnectionId::new(id).unwrap();
    [Step::Enter { alias, id }, Step::Send(acknowledge)]
}

fn close_client(id: &[u8]) -> Capsule {
    Capsule::CloseClientCid { id: bytes(id) }
}

fn close_target(id: &[u8]) -> Capsule {
    Capsule::CloseTargetCid { id: bytes(id) }
}

fn permit(sequence: u64) -> Step {
    Step::Send(Capsule::MaxConnectionIds { sequence })
}

#[test]
fn the_client_is_told_how_many_ids_it_may_register() {
    let greeting = |ids| Registrations::<()>::new(ids).greeting();
    assert_eq!(greeting(8), Some(Capsule::MaxConnectionIds { sequence: 7 }));
    assert_eq!(greeting(2), None, "two are granted by the draft");
}

#[test]
fn an_answer_does_not_keep_the_packet_that_the_id_came_in() {
    let packet = Bytes::from(vec![7; 1200]);
    let id = || packet.slice(600..608);
    let mut table = table(8);
    let reset_token = Bytes::new();
    let answers = [
        table.take(Capsule::RegisterClientCid { id: id() }),
        table.take(Capsule::RegisterTargetCid {
            id: id(),
            reset_token,
        }),
        table.take(Capsule::RegisterClientCid {
            id: packet.slice(..200),
        }),
    ];
    assert!(packet.is_unique(), "{answers:?}");
}

#[test]
fn a_client_id_is_forwarded_only_after_its_alias_was_acknowledged() {
    let mut table = table(8);
    assert_eq!(
        table.client(b"AAAA0000"),
        [ack_client(b"AAAA0000", &[1; 8])]
    );
    assert_eq!(table.forwarded(), []);
    assert_eq!(table.acknowledge(b"AAAA0000", &[1; 8]), [Step::Clients]);
    assert_eq!(table.forwarded(), [(b"AAAA0000".to_vec(), vec![1; 8])]);
}

#[test]
fn an_alias_is_as_long_as_its_client_id_but_never_short() {
    for (id, alias) in [(0, 8), (4, 8), (8, 8), (20, 20)] {
        let id = vec![7; id];
        let mut table = table(8);
        assert_eq!(table.client(&id), [ack_client(&id, &vec![1; alias])]);
    }
}

#[test]
fn a_target_id_is_forwarded_from_its_acknowledgement_on() {
    let mut table = table(8);
    assert_eq!(table.target(b"0000AAAA"), entered(b"0000AAAA", [1; 8]));
}

#[test]
fn ids_longer_than_those_of_version_1_are_closed_and_their_place_is_free() {
    let long = [1; 21];
    let mut table = table(8);
    let refused = Step::Refused(Refusal::TooLong);
    let closed = Step::Send(close_client(&long));
    assert_eq!(table.client(&long), [refused.clone(), closed, permit(8)]);
    let closed = Step::Send(close_target(&long));
    assert_eq!(table.target(&long), [refused, closed, permit(9)]);
}

#[test]
fn a_client_id_that_begins_another_conflicts_with_it() {
    let mut table = table(8);
    table.client(b"abcd");
    for id in [&b"abcdef"[..], b"ab", b""] {
        let steps = table.client(id);
        assert_eq!(steps[0], Step::Refused(Refusal::Conflict));
        assert_eq!(steps[1], Step::Send(close_client(id)));
    }
    assert_eq!(table.client(b"abce").len(), 1);
}

#[test]
fn a_zero_length_client_id_is_fine_alone() {
    let mut table = table(8);
    assert_eq!(table.client(b""), [ack_client(b"", &[1; 8])]);
    assert_eq!(table.client(b"any")[0], Step::Refused(Refusal::Conflict));
}

#[test]
fn target_ids_do_not_conflict_because_their_aliases_are_ours() {
    let mut table = table(8);
    for (at, id) in [&b""[..], b"a", b"ab"].into_iter().enumerate() {
        let alias = [u8::try_from(at).unwrap() + 1; 8];
        assert_eq!(table.target(id), entered(id, alias));
    }
}

#[test]
fn registering_a_client_id_again_gives_another_alias_which_replaces_the_old_one_when_acknowledged()
{
    let mut table = table(8);
    table.client(b"id");
    table.acknowledge(b"id", &[1; 8]);
    let again = table.client(b"id");
    assert_eq!(again, [ack_client(b"id", &[2; 8]), permit(8)]);
    assert_eq!(table.forwarded(), [(b"id".to_vec(), vec![1; 8])]);
    table.acknowledge(b"id", &[2; 8]);
    assert_eq!(table.forwarded(), [(b"id".to_vec(), vec![2; 8])]);
}

#[test]
fn registering_a_target_id_again_keeps_the_last_alias_for_what_is_under_way() {
    let mut table = table(8);
    table.target(b"id");
    let [enter, acknowledge] = entered(b"id", [2; 8]);
    assert_eq!(table.target(b"id"), [enter, acknowledge, permit(8)]);
    let steps = table.target(b"id");
    assert_eq!(steps[2], Step::Leave([1; 8]));
    let closed = table.take(close_target(b"id"));
    let leave = [3, 2].map(|id| Step::Leave([id; 8]));
    assert_eq!(closed, [leave[0].clone(), leave[1].clone(), permit(10)]);
}

#[test]
fn a_registration_beyond_the_maximum_breaks_the_request() {
    let mut table = table(2);
    table.client(b"a");
    table.target(b"b");
    assert_eq!(table.client(b"c"), [Step::Break(Refusal::Limit)]);
}

#[test]
fn closing_an_id_makes_room_for_another() {
    let mut table = table(2);
    table.client(b"a");
    table.target(b"b");
    assert_eq!(table.take(close_client(b"a")), [Step::Clients, permit(2)]);
    assert_eq!(table.client(b"c").len(), 1);
    let steps = table.take(close_target(b"b"));
    assert_eq!(steps, [Step::Leave([2; 8]), permit(3)]);
}

#[test]
fn closing_what_is_not_registered_changes_nothing() {
    let mut table = table(2);
    table.client(b"a");
    assert_eq!(table.take(close_client(b"")), []);
    assert_eq!(table.take(close_target(b"a")), []);
}

#[test]
fn acknowledging_another_alias_or_another_id_changes_nothing() {
    let mut table = table(8);
    let stale = [Step::Refused(Refusal::Stale)];
    assert_eq!(table.acknowledge(b"id", &[1; 8]), stale);
    table.client(b"id");
    assert_eq!(table.acknowledge(b"id", &[9; 8]), stale);
    assert_eq!(table.acknowledge(b"other", &[1; 8]), stale);
    assert_eq!(table.forwarded(), []);
}

#[test]
fn what_only_proxies_send_breaks_the_request() {
    let capsules = [
        Capsule::MaxConnectionIds { sequence: 9 },
        Capsule::AckClientCid {
            id: Bytes::new(),
            virtual_id: Bytes::new(),
        },
        Capsule::AckTargetCid {
            id: Bytes::new(),
            virtual_id: Bytes::new(),
            reset_token: Bytes::new(),
        },
    ];
    for capsule in capsules {
        let steps = table(8).take(capsule);
        assert_eq!(steps, [Step::Break(Refusal::Malformed)]);
    }
}

#[test]
fn a_client_that_moves_is_told_that_all_is_closed_and_may_register_as_many_again() {
    let mut table = table(3);
    table.client(b"a");
    table.acknowledge(b"a", &[1; 8]);
    table.target(b"b");
    let steps = table.0.moved();
    let expected = [
        Step::Send(close_client(b"a")),
        Step::Leave([2; 8]),
        Step::Send(close_target(b"b")),
        Step::Clients,
        permit(4),
    ];
    assert_eq!(steps, expected);
    assert_eq!((table.forwarded(), table.0.is_empty()), (vec![], true));
    assert_eq!(table.0.moved(), [], "there is nothing left to be closed");
    for id in [b"a", b"b", b"c"] {
        assert_eq!(table.client(id).len(), 1);
    }
}

fn any_id() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        prop::collection::vec(0..2_u8, 0..3),
        prop::collection::vec(any::<u8>(), 0..30)
    ]
    .prop_map(Bytes::from)
}

fn any_capsule() -> impl Strategy<Value = Capsule> {
    let token = Bytes::new();
    prop_oneof![
        any_id().prop_map(|id| Capsule::RegisterClientCid { id }),
        any_id().prop_map(move |id| Capsule::RegisterTargetCid {
            id,
            reset_token: token.clone()
        }),
        (any_id(), 0..20_u8).prop_map(|(id, alias)| Capsule::AckClientVcid {
            virtual_id: vec![alias; id.len().max(8)].into(),
            id,
            reset_token: Bytes::new()
        }),
        any_id().prop_map(|id| Capsule::CloseClientCid { id }),
        any_id().prop_map(|id| Capsule::CloseTargetCid { id }),
    ]
}

#[test]
fn without_a_place_an_id_stays_tunnelled_and_a_closed_one_makes_room() {
    let mut table = table(64);
    table.1.2 = 2;
    table.client(b"one");
    table.target(b"two");
    let refused = |steps: &[Step]| steps.contains(&Step::Refused(Refusal::Full));
    let steps = table.client(b"three");
    assert!(refused(&steps) && steps.contains(&Step::Send(close_client(b"three"))));
    let steps = table.target(b"four");
    let close = Capsule::CloseTargetCid { id: bytes(b"four") };
    assert!(refused(&steps) && steps.contains(&Step::Send(close)));
    assert!(!steps.iter().any(|step| matches!(step, Step::Enter { .. })));
    // What is registered keeps its place.
    assert!(!refused(&table.client(b"one")) && !refused(&table.target(b"two")));
    table.take(close_client(b"one"));
    assert!(!refused(&table.target(b"four")));
    assert!(refused(&table.client(b"three")));
    table.0.moved();
    assert!(!refused(&table.client(b"three")));
}

proptest! {
    #[test]
    fn the_table_is_bounded_and_every_registration_is_answered_once(
        capsules in prop::collection::vec(any_capsule(), 0..100), ids in 2..6_usize
    ) {
        let mut table = table(ids);
        let (mut aliases, mut maximum, mut registered) = (0_i32, ids as u64 - 1, 0_u64);
        for capsule in capsules {
            let registration = matches!(
                capsule, Capsule::RegisterClientCid { .. } | Capsule::RegisterTargetCid { .. }
            );
            let allowed = registered <= maximum;
            registered += u64::from(registration && allowed);
            let mut answers = 0;
            for step in table.take(capsule) {
                match step {
                    Step::Enter { .. } => aliases += 1,
                    Step::Leave(_) => aliases -= 1,
                    Step::Break(why) => prop_assert!(why == Refusal::Limit && !allowed),
                    Step::Send(Capsule::MaxConnectionIds { sequence }) => {
                        prop_assert!(sequence > maximum);
                        maximum = sequence;
                    }
                    Step::Send(_) => answers += 1,
                    Step::Clients | Step::Refused(_) => (),
                }
            }
            prop_assert_eq!(answers, i32::from(registration && allowed));
            prop_assert!(table.0.clients.len() + table.0.targets.len() <= ids);
            prop_assert!(aliases <= 2 * i32::try_from(ids).unwrap());
            let open = table.0.targets.iter().map(|t| 1 + i32::from(t.previous.is_some()));
            prop_assert_eq!(aliases, open.sum::<i32>());
        }
    }
}
