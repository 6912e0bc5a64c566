//! What who has the list tells others, an authority or a relay that keeps it for clients ([`ListCache`]): all of it, or the difference to an earlier one, as
//! it is or compressed. docs/directory.md, "Caches" and "Differences".

use std::collections::VecDeque;

use hoplite_crypto::onion::rsa::sha256;
use hoplite_wire::{content_coding::Encoded, directory::list_diff::ListDiff};

use crate::asking::KnownText;

/// Lists that the difference is told to: of a day, where there is one each hour.
pub(crate) const EARLIER: usize = 24;
/// Bytes of all of them.
pub(crate) const EARLIER_BYTES: usize = 32 << 20;

/// The list, and the differences to it. Made anew with each list; what is given is compressed once, and shared.
#[derive(Clone, Debug, Default)]
pub struct ListCache {
    list: Option<Encoded>,
    /// It, without its signatures.
    this: Option<KnownText>,
    earlier: VecDeque<KnownText>,
    /// By the hashes of earlier lists.
    differences: Vec<([u8; 32], Encoded)>,
}

impl ListCache {
    /// What has been kept, the latest last: as if one had come after the other. What is no list is left out.
    pub fn kept(lists: Vec<String>) -> Self {
        let mut lists = lists;
        let Some(last) = lists.pop() else {
            return Self::default();
        };
        let earlier = lists.iter().filter_map(|text| KnownText::of_signed(text));
        let before = Self {
            earlier: earlier.collect(),
            ..Self::default()
        };
        before.with(last)
    }

    /// The same with a later list, all of it with its signatures. It takes some milliseconds for each earlier one. What is no list changes nothing.
    #[must_use]
    pub fn with(&self, text: String) -> Self {
        let Some(this) = KnownText::of_signed(&text) else {
            return self.clone();
        };
        let mut earlier = self.earlier.clone();
        // Others may have signed the same meanwhile.
        earlier.extend(self.this.clone().filter(|before| *before != this));
        let size = |earlier: &VecDeque<KnownText>| -> usize {
            earlier.iter().map(|one| one.body.len()).sum()
        };
        while earlier.len() > EARLIER || size(&earlier) > EARLIER_BYTES {
            earlier.pop_front();
        }
        let to = sha256(text.as_bytes());
        // Who has this one is told that by its signatures alone.
        let differences = earlier.iter().chain([&this]).filter_map(|one| {
            let made = ListDiff::make((&one.hash, &one.body), (&to, &text))?;
            (made.len() < text.len()).then(|| (one.hash, Encoded::of(made)))
        });
        Self {
            differences: differences.collect(),
            earlier,
            list: Some(Encoded::of(text)),
            this: Some(this),
        }
    }

    /// Whether this is the list, whoever has signed it.
    pub fn has(&self, text: &str) -> bool {
        self.this.is_some() && self.this == KnownText::of_signed(text)
    }

    /// What is answered to who has lists with these hashes, the dearest first, or none. `None`: there is no list yet.
    pub fn answer(&self, known: &[[u8; 32]]) -> Option<&Encoded> {
        let to = |known: &[u8; 32]| self.differences.iter().find(|(from, _)| from == known);
        let known = known.iter().find_map(to);
        known
            .map(|(_, difference)| difference)
            .or(self.list.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::content_coding::Encoding;

    use super::*;
    use crate::testing::{hour, hour_of};

    fn known(text: &str) -> KnownText {
        KnownText::of_signed(text).expect("a list")
    }

    /// What is answered, as it is.
    fn answer(cache: &ListCache, known: &[[u8; 32]]) -> Option<String> {
        let text = cache.answer(known)?.text().to_vec();
        Some(String::from_utf8(text).expect("text"))
    }

    #[test]
    fn who_has_the_list_is_told_so_in_some_signatures_and_who_has_a_strange_one_gets_all() {
        let cache = ListCache::default();
        assert_eq!(answer(&cache, &[]), None);
        let text = hour(0, &[1, 2]);
        let cache = cache.with(text.clone());
        assert_eq!(answer(&cache, &[]), Some(text.clone()));
        assert_eq!(answer(&cache, &[[7; 32]]), Some(text.clone()));
        let known = known(&text);
        let same = answer(&cache, &[[7; 32], known.hash]).expect("an answer");
        assert!(same.len() < 600, "{} bytes", same.len());
        assert_eq!(known.apply(&same), Some(text));
    }

    /// What a renewal costs: docs/directory.md has these figures.
    #[test]
    fn a_difference_is_as_long_as_what_relays_have_said_anew() {
        // Bytes of the list, and of the difference after an hour and after two; compressed.
        let costs = |every| {
            let list = |n| hour_of(n, every, &[1, 2]);
            let mut cache = ListCache::default();
            (0..3).for_each(|n| cache = cache.with(list(n)));
            let bytes = |known: &[[u8; 32]]| {
                let answer = cache.answer(known).expect("an answer");
                let [deflated, ..] = answer.parts(Encoding::Deflate);
                (answer.text().len(), deflated.len())
            };
            let difference = |n| bytes(&[known(&list(n)).hash]);
            [bytes(&[]), difference(1), difference(0)]
        };
        let (seldom, hourly) = (costs(10), costs(1));
        println!("every tenth relay: {seldom:?}; all: {hourly:?}");
        let [whole, one, two] = seldom.map(|(text, _)| text);
        assert!(one < two && one < whole / 15, "{one}, {two} of {whole}");
        let [whole, one, two] = hourly.map(|(text, _)| text);
        assert!(one == two && one < whole / 2, "{one}, {two} of {whole}");
        assert!(
            seldom
                .iter()
                .all(|(text, deflated)| deflated < &(text * 4 / 5))
        );
    }

    #[test]
    fn no_more_earlier_lists_are_kept_than_of_a_day_also_over_a_restart() {
        let lists: Vec<_> = (0..30).map(|n| hour(n, &[1, 2])).collect();
        let mut cache = ListCache::default();
        for list in &lists {
            cache = cache.with(list.clone());
        }
        assert_eq!(cache.earlier.len(), EARLIER);
        assert_eq!(cache.earlier.front(), Some(&known(&hour(5, &[1, 2]))));
        let kept = ListCache::kept(lists[4..].to_vec());
        for hour in [4, 5, 28, 29] {
            let known = known(&lists[hour]).hash;
            let [one, other] = [&cache, &kept].map(|cache| answer(cache, &[known]));
            assert_eq!(one, other, "hour {hour}");
        }
        assert_eq!(answer(&ListCache::kept(Vec::new()), &[]), None);
    }

    #[test]
    fn the_same_list_with_other_signatures_is_no_later_one() {
        let (one, other) = (hour(0, &[1, 2]), hour(0, &[2, 3]));
        let cache = ListCache::default().with(one);
        assert!(cache.has(&other) && !cache.has(&hour(1, &[1, 2])));
        let cache = cache.with(other.clone());
        assert_eq!(cache.earlier.len(), 0);
        assert_eq!(answer(&cache, &[]), Some(other));
    }

    #[test]
    fn what_is_no_list_changes_nothing() {
        let cache = ListCache::default().with(hour(0, &[1, 2]));
        let after = cache.with("no list\n".to_owned());
        assert!(answer(&after, &[]) == answer(&cache, &[]));
        assert_eq!(after.earlier.len(), 0);
    }
}
