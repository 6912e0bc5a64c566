//! A client's view of the directory: the newest list that it believes, what was wrong with others, and where to ask next.

use std::time::Duration;

use futures_util::future::join_all;
use hoplite_overlay::Overlay;
use hoplite_wire::{
    Target,
    directory::{Key, LIST, SignedList, Stage},
};

use crate::{FetchError, Refused, Store, StoreError, Trust, check_list, fetch};

/// Where an authority answers, and by what key it signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Host and port of its HTTP.
    pub address: Target,
    /// Who it is.
    pub key: Key,
}

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
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    list: SignedList,
    split: bool,
}

impl Client {
    /// What `store` has, as far as these authorities have signed it: a list of another directory neither serves nor hinders.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn new(trust: Trust, store: Store) -> Result<Self, StoreError> {
        let kept = store.list()?.and_then(|(text, split)| {
            let list = SignedList::parse(&text, Stage::List).ok()?;
            (trust.count(&list) >= trust.threshold.max(1)).then_some(Kept { list, split })
        });
        Ok(Self { trust, store, kept })
    }

    /// The list, if there is one and its time is not over.
    ///
    /// # Errors
    /// [`Refused::Stale`], [`Refused::Early`] or [`Refused::Split`]: what is kept must not be used.
    pub fn list(&self, now: u64) -> Result<Option<&SignedList>, Refused> {
        let Some(kept) = &self.kept else {
            return Ok(None);
        };
        if kept.split {
            return Err(Refused::Split);
        }
        self.trust.check_times(&kept.list.list, now)?;
        Ok(Some(&kept.list))
    }

    /// When to ask again: at a moment of the two thirds of the last that are left when the list is no longer fresh, so that clients do not
    /// come all at once and authorities learn nothing from the moment. `random` gives a number below its argument.
    pub fn next(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        let Ok(Some(list)) = self.list(now) else {
            return now;
        };
        let (fresh, until) = (list.list.fresh_until, list.list.valid_until);
        let room = until.saturating_sub(fresh) / 3 * 2;
        fresh.saturating_add(random(room.max(1)))
    }

    /// Judges a list that somebody offers.
    ///
    /// # Errors
    /// Each of [`Refused`], inside; the store's own failures, outside.
    pub fn heard(&mut self, text: &str, now: u64) -> Result<Result<Heard, Refused>, StoreError> {
        let list = match check_list(text, &self.trust, now) {
            Ok(list) => list,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(kept) = &self.kept else {
            return self.keep(list);
        };
        let (ours, theirs) = (kept.list.list.valid_after, list.list.valid_after);
        match theirs.cmp(&ours) {
            std::cmp::Ordering::Greater => self.keep(list),
            std::cmp::Ordering::Less => Ok(Err(Refused::RolledBack {
                by: ours.saturating_sub(theirs),
            })),
            std::cmp::Ordering::Equal if kept.list.list == list.list => match kept.split {
                true => Ok(Err(Refused::Split)),
                false => Ok(Ok(Heard::Same)),
            },
            std::cmp::Ordering::Equal => self.split(&list),
        }
    }

    fn keep(&mut self, list: SignedList) -> Result<Result<Heard, Refused>, StoreError> {
        self.store.keep_list(&list.to_string())?;
        self.kept = Some(Kept { list, split: false });
        Ok(Ok(Heard::Newer))
    }

    fn split(&mut self, other: &SignedList) -> Result<Result<Heard, Refused>, StoreError> {
        if let Some(kept) = &mut self.kept {
            self.store
                .keep_split(&kept.list.to_string(), &other.to_string())?;
            kept.split = true;
        }
        Ok(Err(Refused::Split))
    }

    /// Where guards are kept.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Asks all `sources` at once; what each answered, in their order.
    pub async fn ask(
        overlay: &dyn Overlay,
        sources: &[Source],
        limit: Duration,
    ) -> Vec<Result<String, FetchError>> {
        let ask = |source: &Source| {
            let address = source.address.clone();
            async move { fetch(overlay, &address, "/hoplite/list", LIST, limit).await }
        };
        join_all(sources.iter().map(ask)).await
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
            skew: 60,
        };
        let mut second = Client::new(other, Store::open(&path).expect("opened")).expect("read");
        let theirs = signed_by(&list(START, &[]), &[7]).to_string();
        assert_eq!(hear(&mut second, &theirs), Ok(Heard::Newer));
    }

    #[test]
    fn two_lists_for_one_time_are_a_split_until_there_is_a_later_one() {
        let mut client = client();
        let (one, other) = (text(START, &[1]), text(START, &[2]));
        assert_eq!(hear(&mut client, &one), Ok(Heard::Newer));
        assert_eq!(hear(&mut client, &other), Err(Refused::Split));
        assert_eq!(client.list(START + 10).err(), Some(Refused::Split));
        assert_eq!(hear(&mut client, &one), Err(Refused::Split));
        assert_eq!(client.store().proofs().expect("read"), [one, other]);
        assert_eq!(
            hear(&mut client, &text(START + 3600, &[1])),
            Ok(Heard::Newer)
        );
        assert!(client.list(START + 4000).expect("fine").is_some());
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
        assert_eq!(client.next(START, &mut |_| 0), START + 3600);
        assert_eq!(
            client.next(START, &mut |below| below - 1),
            START + 3600 + 4799
        );
    }
}
