//! A client's view of the directory: the newest list that it believes, what was wrong with others, and where to ask next.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use hoplite_wire::directory::{Key, List, SignedList, Stage, split_signed};

use crate::{
    Lifetime, Refused, Store, StoreError, Trust, asking::KnownText, check::check_list_with,
};

/// What a list that was believed meant to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It replaces the one before.
    Newer,
    /// It is the one that we have.
    Same,
}

/// The list that is believed. Every change is written to the store before it counts.
#[derive(Debug)]
pub struct Client {
    trust: Trust,
    store: Store,
    /// The newest that enough authorities have signed.
    newest: Option<KnownList>,
    /// The last before it that nothing spoke against: it is used while the newest is split.
    before: Option<KnownList>,
}

#[derive(Clone, Debug)]
struct KnownList {
    list: Arc<SignedList>,
    split: bool,
}

/// Checks what authorities answer beside a [`Client`]: thousands of signatures, for a thread that may block.
#[derive(Debug)]
pub struct ListChecker {
    trust: Trust,
    kept: Vec<Arc<SignedList>>,
}

/// An answer that can be believed, for [`Client::take`].
#[derive(Clone, Debug)]
pub struct Offered(Arc<SignedList>);

impl ListChecker {
    /// What of these answers can be believed, in their order. What is here already, or stands in another answer too, is compared and not checked again.
    pub fn check(mut self, answers: &[String], now: u64) -> Vec<Result<Offered, Refused>> {
        let answers = answers.iter();
        answers.map(|text| self.check_one(text, now)).collect()
    }

    fn check_one(&mut self, text: &str, now: u64) -> Result<Offered, Refused> {
        if let Some(known) = self.known(text) {
            self.trust.check_times(&known.list, now)?;
            return Ok(Offered(known));
        }
        let known = self.kept.iter().map(|kept| kept.list.relays.as_slice());
        let list = check_list_with(text, &self.trust, now, &known.collect::<Vec<_>>())?;
        let list = Arc::new(list);
        self.kept.push(Arc::clone(&list));
        Ok(Offered(list))
    }

    /// The same list, whoever else has signed it.
    fn known(&self, text: &str) -> Option<Arc<SignedList>> {
        let (body, _) = split_signed(text).ok()?;
        let mut kept = self.kept.iter();
        kept.find(|kept| is_written(&kept.list, body)).cloned()
    }
}

/// Whether this is the list's text; most that are not are told by their times.
fn is_written(list: &List, body: &str) -> bool {
    let head = format!(
        "{}valid-after {}\n",
        list.stage.head_line(),
        list.valid_after
    );
    body.starts_with(&head) && list.text() == body
}

fn lifetime(list: &List) -> Lifetime {
    Lifetime {
        valid_after: list.valid_after,
        fresh_until: list.fresh_until,
        valid_until: list.valid_until,
    }
}

impl Client {
    /// What `store` has, as far as these authorities have signed it: a list of another directory neither serves nor hinders.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn new(trust: Trust, store: Store) -> Result<Self, StoreError> {
        let kept = |text: String, split| {
            let list = SignedList::parse(&text, Stage::List).ok()?;
            let good = trust.count(&list) >= trust.threshold.max(1);
            let list = Arc::new(list);
            good.then_some(KnownList { list, split })
        };
        let newest = store.list()?.and_then(|(text, split)| kept(text, split));
        let before = store.before()?.and_then(|text| kept(text, false));
        Ok(Self {
            trust,
            store,
            newest,
            before,
        })
    }

    /// The list to be used, if there is one and its time is not over: the newest, or while that is split the last one before.
    ///
    /// # Errors
    /// [`Refused::Stale`], [`Refused::Early`] or [`Refused::Split`]: what is kept must not be used.
    pub fn list(&self, now: u64) -> Result<Option<&SignedList>, Refused> {
        let Some(newest) = &self.newest else {
            return Ok(None);
        };
        if !newest.split {
            self.trust.check_times(&newest.list.list, now)?;
            return Ok(Some(&newest.list));
        }
        let before = self.before.as_ref().map(|before| &*before.list);
        let holds = |list: &&SignedList| self.trust.check_times(&list.list, now).is_ok();
        before.filter(holds).map(Some).ok_or(Refused::Split)
    }

    /// Whether there were two lists for the newest time, so that an older one is used as long as it holds.
    pub fn is_split(&self) -> bool {
        self.newest.as_ref().is_some_and(|newest| newest.split)
    }

    /// When to ask again ([`Lifetime::next_list`]): authorities learn nothing from the moment. `random` gives a number below its argument.
    pub fn next(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        self.due(now, |newest| newest.next_list(random))
    }

    /// At once, where there is none to be used. A split one has been as fresh as any other: the next is due when it is over.
    fn due(&self, now: u64, next: impl FnOnce(Lifetime) -> u64) -> u64 {
        match (self.list(now), &self.newest) {
            (Ok(Some(_)), Some(newest)) => next(lifetime(&newest.list.list)),
            _ => now,
        }
    }

    /// Who judges answers.
    pub fn checker(&self) -> ListChecker {
        let kept = self.newest.iter().chain(&self.before);
        ListChecker {
            trust: self.trust.clone(),
            kept: kept.map(|kept| Arc::clone(&kept.list)).collect(),
        }
    }

    /// Takes lists that were judged, all that were answered to one question, and says what each meant, in their order.
    ///
    /// # Errors
    /// [`Refused::RolledBack`] and [`Refused::Split`], inside; the store's own failures, outside.
    pub fn take(
        &mut self,
        offered: Vec<Result<Offered, Refused>>,
    ) -> Result<Vec<Result<Heard, Refused>>, StoreError> {
        let refused = |offered: &Result<Offered, Refused>| offered.as_ref().err().copied();
        let mut heard: Vec<_> = offered
            .iter()
            .map(|offered| refused(offered).map_or(Ok(Heard::Same), Err))
            .collect();
        let mut good: Vec<(usize, Offered)> = Vec::new();
        for (place, offered) in offered.into_iter().enumerate() {
            good.extend(offered.ok().map(|offered| (place, offered)));
        }
        // The oldest first: which one is the last before a split does not depend on who answers first.
        good.sort_by_key(|(_, offered)| offered.0.list.valid_after);
        for (place, offered) in good {
            let answer = self.take_one(&offered.0)?;
            if let Some(heard) = heard.get_mut(place) {
                *heard = answer;
            }
        }
        Ok(heard)
    }

    /// Judges a list that somebody offers, here and now.
    ///
    /// # Errors
    /// Each of [`Refused`], inside; the store's own failures, outside.
    pub fn heard(&mut self, text: &str, now: u64) -> Result<Result<Heard, Refused>, StoreError> {
        match self.checker().check_one(text, now) {
            Ok(offered) => self.take_one(&offered.0),
            Err(refused) => Ok(Err(refused)),
        }
    }

    fn take_one(&mut self, list: &Arc<SignedList>) -> Result<Result<Heard, Refused>, StoreError> {
        let Some(newest) = &self.newest else {
            return self.keep(list);
        };
        let (ours, theirs) = (newest.list.list.valid_after, list.list.valid_after);
        match theirs.cmp(&ours) {
            std::cmp::Ordering::Greater => self.keep(list),
            std::cmp::Ordering::Less => Ok(Err(Refused::RolledBack {
                by: ours.saturating_sub(theirs),
            })),
            std::cmp::Ordering::Equal if newest.list.list == list.list => {
                if newest.split {
                    Ok(Err(Refused::Split))
                } else {
                    Ok(Ok(Heard::Same))
                }
            }
            std::cmp::Ordering::Equal => self.split(list),
        }
    }

    fn keep(&mut self, list: &Arc<SignedList>) -> Result<Result<Heard, Refused>, StoreError> {
        self.store.keep_list(&list.to_string())?;
        let new = KnownList {
            list: Arc::clone(list),
            split: false,
        };
        let before = self.newest.replace(new).filter(|before| !before.split);
        self.before = before.or_else(|| self.before.take());
        Ok(Ok(Heard::Newer))
    }

    fn split(&mut self, other: &SignedList) -> Result<Result<Heard, Refused>, StoreError> {
        if let Some(newest) = &mut self.newest {
            self.store
                .keep_split(&newest.list.to_string(), &other.to_string())?;
            newest.split = true;
        }
        Ok(Err(Refused::Split))
    }

    /// Where guards are kept.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// When a relay asks again that is a newcomer, or in a directory that is changing ([`Self::is_settled`]). `random` gives a number below its argument.
    pub fn next_of_newcomer(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        self.due(now, |newest| newest.next_list_of_newcomer(random))
    }

    /// Whether the relays of the newest list are those of the last one before, but for a tenth, and this one is among them if it is given. In a directory
    /// that is new, or has many newcomers, a list is soon of little use.
    pub fn is_settled(&self, own: Option<&Key>) -> bool {
        let (Some(newest), Some(before)) = (&self.newest, &self.before) else {
            return false;
        };
        let relays = |known: &KnownList| -> BTreeSet<Key> {
            let relays = known.list.list.relays.iter();
            relays.map(|relay| relay.descriptor.identity).collect()
        };
        let (newest, before) = (relays(newest), relays(before));
        let changed = newest.symmetric_difference(&before).count();
        own.is_none_or(|own| newest.contains(own)) && changed.saturating_mul(10) <= newest.len()
    }

    /// When a relay that keeps the list for others asks again ([`Lifetime::next_list_of_cache`]). `random` gives a number below its argument.
    pub fn next_of_cache(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        self.due(now, |newest| newest.next_list_of_cache(random))
    }

    /// Where relays of the list that is used keep it for others.
    pub fn caches(&self, now: u64) -> Vec<SocketAddr> {
        let list = self.list(now).ok().flatten();
        let relays = list.map_or(&[][..], |list| &list.list.relays);
        let caches = relays.iter().map(|relay| relay.descriptor.cache_address());
        caches.flatten().collect()
    }

    /// The list that is used, for who is asked for the next one to tell the difference to. Of one that is over nobody learns that somebody has come back.
    pub fn known_list(&self, now: u64) -> Option<KnownText> {
        let list = self.list(now).ok().flatten()?;
        Some(KnownText::of(&list.list.text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{descriptor, list, signed_by, trust};

    const START: u64 = 1_700_000_000;

    fn client() -> Client {
        Client::new(trust(3, 2), Store::in_memory().expect("made")).expect("empty")
    }

    fn text(start: u64, relays: &[u8]) -> String {
        let relays: Vec<_> = relays.iter().copied().map(descriptor).collect();
        signed_by(&list(start, &relays), &[1, 2]).to_string()
    }

    fn hear(client: &mut Client, text: &str) -> Result<Heard, Refused> {
        client.heard(text, START + 4000).expect("stored")
    }

    #[test]
    fn a_newer_list_replaces_an_older_and_never_the_other_way() {
        let mut client = client();
        let (old, new) = (text(START, &[1]), text(START + 3600, &[1, 2]));
        assert_eq!(hear(&mut client, &old), Ok(Heard::Newer));
        assert_eq!(hear(&mut client, &old), Ok(Heard::Same));
        assert_eq!(hear(&mut client, &new), Ok(Heard::Newer));
        assert_eq!(
            hear(&mut client, &old),
            Err(Refused::RolledBack { by: 3600 })
        );
        let kept = client.list(START + 4000).expect("fine").expect("kept");
        assert_eq!(kept.list.relays.len(), 2);
    }

    #[test]
    fn a_directory_is_settled_when_its_relays_are_those_of_before_and_one_is_among_them() {
        let identity = |n: u8| descriptor(n).descriptor.identity;
        let (many, more): (Vec<u8>, Vec<u8>) = ((1..=20).collect(), (1..=22).collect());
        // Lists one after the other, whose relay asks, and what is said after each.
        for (lists, own, expected) in [
            (
                [&many[..1], &many[..], &more[..]],
                None,
                [false, false, true],
            ),
            ([&many, &many, &more], Some(1), [false, true, true]),
            ([&many, &many, &more], Some(22), [false, false, true]),
            ([&many[..0]; 3], Some(1), [false; 3]),
        ] {
            let mut client = client();
            for (n, (relays, expected)) in (0..).zip(lists.iter().zip(expected)) {
                let heard = client.heard(&text(START + 3600 * n, relays), START + 3600 * n);
                assert_eq!(heard.expect("stored"), Ok(Heard::Newer));
                let own = own.map(identity);
                assert_eq!(client.is_settled(own.as_ref()), expected, "{own:?} {n}");
            }
        }
    }

    #[test]
    fn a_restart_forgets_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache");
        let open = || Client::new(trust(3, 2), Store::open(&path).expect("opened")).expect("read");
        assert_eq!(
            hear(&mut open(), &text(START + 3600, &[1])),
            Ok(Heard::Newer)
        );
        assert_eq!(
            hear(&mut open(), &text(START, &[1])),
            Err(Refused::RolledBack { by: 3600 })
        );
        assert!(open().list(START + 4000).expect("fine").is_some());
    }

    #[test]
    fn a_list_of_another_directory_does_not_hinder() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache");
        let mut first =
            Client::new(trust(3, 2), Store::open(&path).expect("opened")).expect("read");
        assert_eq!(
            hear(&mut first, &text(START + 3600, &[1])),
            Ok(Heard::Newer)
        );
        drop(first);
        let other = Trust {
            authorities: vec![crate::testing::public(7)],
            threshold: 1,
            hostile: 0,
            skew: 60,
        };
        let mut second = Client::new(other, Store::open(&path).expect("opened")).expect("read");
        let theirs = signed_by(&list(START, &[]), &[7]).to_string();
        assert_eq!(hear(&mut second, &theirs), Ok(Heard::Newer));
    }

    #[test]
    fn a_split_leaves_the_last_good_list_in_use_until_its_end_or_a_later_one() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache");
        let open = || Client::new(trust(3, 2), Store::open(&path).expect("opened")).expect("read");
        let mut client = open();
        let good = text(START, &[1]);
        let (one, other) = (text(START + 3600, &[1]), text(START + 3600, &[2]));
        assert_eq!(hear(&mut client, &good), Ok(Heard::Newer));
        assert_eq!(hear(&mut client, &one), Ok(Heard::Newer));
        assert_eq!(hear(&mut client, &other), Err(Refused::Split));
        let rolled_back = Err(Refused::RolledBack { by: 3600 });
        // Also after a restart.
        for mut client in [client, open()] {
            let used = client.list(START + 4000).expect("good").expect("there");
            assert_eq!(used.to_string(), good);
            assert!(client.is_split());
            assert_eq!(hear(&mut client, &one), Err(Refused::Split));
            assert_eq!(hear(&mut client, &good), rolled_back);
            // It is asked for the next one when that is due, not all the time.
            assert_eq!(client.next(START + 4000, &mut |_| 0), START + 7200 + 900);
            let stale = client.list(START + 3 * 3600 + 61).err();
            assert_eq!(stale, Some(Refused::Split));
        }
        let mut client = open();
        assert_eq!(client.store().proofs().expect("read"), [one, other]);
        let later = text(START + 7200, &[1]);
        assert_eq!(
            client.heard(&later, START + 7200).expect("stored"),
            Ok(Heard::Newer)
        );
        let used = client.list(START + 7200).expect("fine").expect("there");
        assert_eq!(used.to_string(), later);
    }

    #[test]
    fn without_any_list_before_neither_of_two_is_used() {
        let mut client = client();
        let (one, other) = (text(START, &[1]), text(START, &[2]));
        assert_eq!(hear(&mut client, &one), Ok(Heard::Newer));
        assert_eq!(hear(&mut client, &other), Err(Refused::Split));
        assert_eq!(client.list(START + 10).err(), Some(Refused::Split));
        let later = text(START + 3600, &[1]);
        assert_eq!(hear(&mut client, &later), Ok(Heard::Newer));
        assert!(client.list(START + 4000).expect("fine").is_some());
    }

    #[test]
    fn what_all_answer_is_judged_together_and_each_descriptor_once() {
        let mut client = client();
        let (old, one, other) = (
            text(START, &[1]),
            text(START + 3600, &[1]),
            text(START + 3600, &[2]),
        );
        // The same list, which another two have signed, and one that is forged.
        let relays = [descriptor(1)];
        let same = signed_by(&list(START + 3600, &relays), &[2, 3]).to_string();
        let forged = signed_by(&list(START + 3600, &[]), &[1]).to_string();
        let answers = [one, other, forged, old.clone(), same];
        let judged = client.checker().check(&answers, START + 4000);
        let heard = client.take(judged).expect("stored");
        let forged = Err(Refused::Forged { good: 1, needed: 2 });
        let split = Err(Refused::Split);
        assert_eq!(
            heard,
            [Ok(Heard::Newer), split, forged, Ok(Heard::Newer), split]
        );
        let used = client.list(START + 4000).expect("fine").expect("there");
        assert_eq!(used.to_string(), old);
    }

    #[test]
    fn what_is_known_is_compared_and_never_checked_again() {
        let mut client = client();
        assert_eq!(
            hear(&mut client, &text(START, &[1, 2, 3])),
            Ok(Heard::Newer)
        );
        let before = crate::check::checks();
        assert_eq!(hear(&mut client, &text(START, &[1, 2, 3])), Ok(Heard::Same));
        assert_eq!(crate::check::checks(), before);
        let next = text(START + 3600, &[1, 2, 3, 4]);
        let judged = client
            .checker()
            .check(&[next.clone(), next.clone(), next], START + 4000);
        assert_eq!(crate::check::checks(), before + 1, "only the new relay's");
        assert_eq!(judged.len(), 3);
    }

    /// What a hostile network of authorities may show: lists of any time and content, with enough signatures or too few, in any order.
    mod any {
        use std::collections::BTreeMap;

        use proptest::{collection::vec, prelude::*};

        use super::*;

        #[derive(Clone, Debug)]
        struct Shown {
            period: u64,
            relays: u8,
            signers: Vec<u8>,
        }

        fn shown() -> impl Strategy<Value = Shown> {
            let signers =
                prop_oneof![4 => Just(vec![1, 2]), 2 => Just(vec![2, 3]), 1 => Just(vec![1])];
            (0..6u64, 1..4u8, signers).prop_map(|(period, relays, signers)| Shown {
                period,
                relays,
                signers,
            })
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(96))]

            #[test]
            fn a_client_is_never_rolled_back_and_never_stops_while_its_list_holds(
                steps in vec((vec(shown(), 0..4), any::<bool>()), 1..12),
            ) {
                let directory = tempfile::tempdir().expect("directory");
                let path = directory.path().join("cache");
                let open = || Client::new(trust(3, 2), Store::open(&path).expect("opened")).expect("read");
                let (mut client, mut now) = (open(), START);
                // What was seen signed well enough, by period.
                let mut seen = BTreeMap::<u64, Vec<u8>>::new();
                let mut newest = 0;
                for (answers, restarts) in steps {
                    now += 1800;
                    if restarts {
                        client = open();
                    }
                    let used = client.list(now).ok().flatten().cloned();
                    let texts: Vec<_> = answers.iter().map(|shown| {
                        let relays: Vec<_> = (1..=shown.relays).map(descriptor).collect();
                        signed_by(&list(START + 3600 * shown.period, &relays), &shown.signers).to_string()
                    }).collect();
                    let judged = client.checker().check(&texts, now);
                    let heard = client.take(judged).expect("stored");
                    for (shown, heard) in answers.iter().zip(&heard) {
                        if shown.signers.len() < 2 {
                            prop_assert!(!matches!(heard, Ok(Heard::Newer)));
                        } else if !matches!(heard, Err(Refused::RolledBack { .. } | Refused::Early { .. } | Refused::Stale { .. })) {
                            seen.entry(shown.period).or_default().push(shown.relays);
                        }
                    }
                    let last = seen.keys().next_back().map_or(0, |period| START + 3600 * period);
                    prop_assert!(last >= newest, "rolled back");
                    newest = last;
                    let after = client.list(now);
                    if let Ok(Some(list)) = &after {
                        let period = (list.list.valid_after - START) / 3600;
                        let of_period = &seen[&period];
                        prop_assert!(of_period.iter().all(|relays| *relays == of_period[0]), "a split list is used");
                    }
                    // What it used before still holds, and was neither replaced nor contradicted.
                    if let Some(used) = used {
                        let period = (used.list.valid_after - START) / 3600;
                        let of_period = &seen[&period];
                        let is_contradicted = of_period.iter().any(|relays| *relays != of_period[0]);
                        if let Ok(Some(now_used)) = after {
                            prop_assert!(is_contradicted || now_used.list.valid_after >= used.list.valid_after);
                        } else {
                            prop_assert!(is_contradicted, "stopped though its list holds");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_kept_is_not_used_when_its_time_is_over() {
        let mut client = client();
        assert_eq!(hear(&mut client, &text(START, &[1])), Ok(Heard::Newer));
        assert_eq!(
            client.list(START + 20_000).err(),
            Some(Refused::Stale { ago: 9200 })
        );
    }

    #[test]
    fn clients_ask_again_after_the_list_is_no_longer_fresh_and_before_its_end() {
        let mut client = client();
        assert_eq!(client.next(START, &mut |_| 0), START);
        assert_eq!(hear(&mut client, &text(START, &[1])), Ok(Heard::Newer));
        assert_eq!(client.next(START, &mut |_| 0), START + 3600 + 900);
        assert_eq!(
            client.next(START, &mut |below| below - 1),
            START + 3600 + 4799
        );
    }
}
