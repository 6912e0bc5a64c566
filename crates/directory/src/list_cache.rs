//! Relays that keep the list for clients, so that these need not ask the authorities each time: what such a relay has ([`ListCache`]), and how it is
//! asked ([`ask_caches`]). docs/directory.md, "Caches".
//!
//! A cache is not trusted: what it answers is checked as an authority's answer is. One that is old, makes things up, or hangs costs what one
//! question costs.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use hoplite_crypto::onion::rsa::sha256;
use hoplite_overlay::Overlay;
use hoplite_wire::{
    Target,
    directory::{LIST, SignedList, list_diff::ListDiff, split_signed},
};

use crate::{FetchError, fetch::fetch_list};

/// Lists that a cache tells the difference to: of a day, where there is one each hour.
const EARLIER: usize = 24;
/// Bytes of all of them.
const EARLIER_BYTES: usize = 32 << 20;

/// A list that is known, without its signatures: others may have been gathered elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownText {
    body: Arc<str>,
    hash: [u8; 32],
}

impl KnownText {
    pub(crate) fn of(body: String) -> Self {
        Self {
            hash: sha256(body.as_bytes()),
            body: body.into(),
        }
    }

    /// The later list, if this is the difference to it.
    fn apply(&self, text: &str) -> Option<String> {
        let diff = ListDiff::parse(text).ok()?;
        (diff.from == self.hash).then_some(())?;
        let later = diff.apply(&self.body).ok()?;
        let fits = later.len() <= LIST && sha256(later.as_bytes()) == diff.to;
        fits.then_some(later)
    }
}

/// What a cache answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The list.
    pub text: String,
    /// Bytes that came for it.
    pub bytes: usize,
}

/// Asks all `caches` at once for the list, or for the difference to the one that is known; what each answered, in their order. A difference that makes
/// no list is [`FetchError::Unfit`].
pub async fn ask_caches(
    overlay: &dyn Overlay,
    caches: &[SocketAddr],
    known: Option<&KnownText>,
    limit: Duration,
) -> Vec<Result<Answered, FetchError>> {
    let ask = |cache: &SocketAddr| {
        let cache = Target::from(*cache);
        async move {
            let hash = known.map(|known| &known.hash);
            let text = fetch_list(overlay, &cache, hash, limit).await?;
            let bytes = text.len();
            if !ListDiff::is_one(&text) {
                return Ok(Answered { text, bytes });
            }
            let later = known.and_then(|known| known.apply(&text));
            let text = later.ok_or(FetchError::Unfit)?;
            Ok(Answered { text, bytes })
        }
    };
    join_all(caches.iter().map(ask)).await
}

/// What a relay that keeps the list has: the list, and the differences to it. Made anew with each list; what is given is shared.
#[derive(Clone, Debug, Default)]
pub struct ListCache {
    list: Option<Bytes>,
    earlier: VecDeque<KnownText>,
    /// By the hashes of earlier lists.
    differences: Vec<([u8; 32], Bytes)>,
}

impl ListCache {
    /// The same with a later list. It takes some milliseconds for each earlier one.
    #[must_use]
    pub fn with(&self, list: &SignedList) -> Self {
        let text = list.to_string();
        let mut earlier = self.earlier.clone();
        let before = self
            .list
            .as_deref()
            .and_then(|list| str::from_utf8(list).ok());
        let before = before.and_then(|before| split_signed(before).ok());
        earlier.extend(before.map(|(body, _)| KnownText::of(body.to_owned())));
        let size = |earlier: &VecDeque<KnownText>| -> usize {
            earlier.iter().map(|one| one.body.len()).sum()
        };
        while earlier.len() > EARLIER || size(&earlier) > EARLIER_BYTES {
            earlier.pop_front();
        }
        let to = sha256(text.as_bytes());
        // Who has this one is told that by its signatures alone.
        let this = KnownText::of(list.list.text());
        let differences = earlier.iter().chain([&this]).filter_map(|one| {
            let made = ListDiff::make((&one.hash, &one.body), (&to, &text))?;
            (made.len() < text.len()).then(|| (one.hash, made.into()))
        });
        Self {
            differences: differences.collect(),
            earlier,
            list: Some(text.into()),
        }
    }

    /// What is answered to who has the list with this hash, or none. `None`: there is no list yet.
    pub fn answer(&self, known: Option<&[u8; 32]>) -> Option<Bytes> {
        let known = known.and_then(|known| self.differences.iter().find(|(from, _)| from == known));
        known
            .map(|(_, difference)| difference)
            .or(self.list.as_ref())
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use hoplite_overlay::Stream;
    use hoplite_testing::Double;
    use hoplite_wire::directory::{Descriptor, SignedDescriptor, Stage};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream, duplex};

    use super::*;
    use crate::{
        Client, Heard, Store, sign_descriptor,
        testing::{key, list, said, signed_by, trust},
    };

    const START: u64 = 1_700_000_000;
    const LIMIT: Duration = Duration::from_secs(20);

    /// What relay `n` said at a time.
    fn relay(n: u8, published: u64) -> SignedDescriptor {
        let descriptor = Descriptor {
            published,
            cache: Some(9030),
            ..said(n)
        };
        sign_descriptor(descriptor, &key(n)).expect("signed")
    }

    /// The list of 100 relays of hour `hour`, in which every tenth has said something else since the hour before.
    fn hour(hour: u64, signers: &[u8]) -> String {
        hour_of(hour, 10, signers)
    }

    /// The same where each relay says something else after so many hours.
    fn hour_of(hour: u64, every: u64, signers: &[u8]) -> String {
        let says = |n: u8| {
            let changed = (hour + u64::from(n)) / every;
            relay(n, 1_699_000_000 + changed)
        };
        let relays: Vec<_> = (1..=100).map(says).collect();
        signed_by(&list(START + hour * 3600, &relays), signers).to_string()
    }

    fn parsed(text: &str) -> SignedList {
        SignedList::parse(text, Stage::List).expect("a list")
    }

    fn client() -> Client {
        Client::new(trust(3, 2), Store::in_memory().expect("made")).expect("empty")
    }

    /// An overlay on which each cache, by its port, answers so.
    fn caches(answers: Vec<Option<Bytes>>) -> (Double, Vec<SocketAddr>) {
        let places = (0..answers.len()).filter_map(|n| u16::try_from(n).ok());
        let places = places.map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let places = places.collect();
        let overlay = Double::nothing().streams(move |_, target, _| {
            let answer = answers.get(usize::from(target.port)).cloned().flatten();
            let (ours, mut theirs) = duplex(1 << 20);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(theirs.read_u8().await.expect("a request"));
                }
                let Some(answer) = answer else {
                    // It hangs.
                    return std::future::pending::<()>().await;
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                    answer.len()
                );
                theirs.write_all(head.as_bytes()).await.expect("taken");
                theirs.write_all(&answer).await.expect("taken");
            });
            Box::pin(async { Ok(Stream::new(BufStream::new(ours))) })
        });
        (overlay, places)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_takes_the_difference_of_one_honest_cache_among_liars() {
        let (earlier, later) = (hour(0, &[1, 2]), hour(1, &[2, 3]));
        let mut client = client();
        let now = START + 3600;
        assert_eq!(client.heard(&earlier, now).expect("kept"), Ok(Heard::Newer));
        let known = client.known_list(now).expect("one");
        // The cache has the earlier list with the signatures of others.
        let cache = ListCache::default().with(&parsed(&hour(0, &[1, 3])));
        let old = cache.answer(Some(&known.hash)).expect("a difference");
        let cache = cache.with(&parsed(&later));
        let good = cache.answer(Some(&known.hash)).expect("a difference");
        let text = str::from_utf8(&good).expect("text");
        let changed = text.replace("published 1", "published 2");
        assert_ne!(changed, text);
        let forged = later.replace("bandwidth 1000000", "bandwidth 9000000");
        let script = "hoplite-list-diff 1\n1,$d\n".to_owned();
        let answers = [
            old,
            changed.into(),
            forged.into(),
            script.into(),
            good.clone(),
        ];
        let answers = answers.into_iter().map(Some).chain([None]).collect();
        let (overlay, caches) = caches(answers);
        let answers = ask_caches(&overlay, &caches, Some(&known), LIMIT).await;
        assert!(matches!(answers[1], Err(FetchError::Unfit)));
        assert!(matches!(answers[3], Err(FetchError::Unfit)));
        assert!(matches!(answers[5], Err(FetchError::TimedOut)));
        assert_eq!(
            answers[4].as_ref().map(|it| it.bytes).ok(),
            Some(good.len())
        );
        let texts: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        let texts: Vec<_> = texts.into_iter().map(|one| one.text).collect();
        let heard = client.checker().check(&texts, now);
        let heard = client.take(heard).expect("kept");
        assert_eq!(
            heard.iter().filter(|heard| heard.is_ok()).count(),
            2,
            "{heard:?}"
        );
        assert!(heard.contains(&Ok(Heard::Newer)), "{heard:?}");
        let list = client.list(now).expect("good").expect("there");
        assert_eq!(list.list.valid_after, START + 3600);
    }

    #[test]
    fn who_has_the_list_is_told_so_in_some_signatures_and_who_has_a_strange_one_gets_all() {
        let cache = ListCache::default();
        assert_eq!(cache.answer(None), None);
        let text = hour(0, &[1, 2]);
        let cache = cache.with(&parsed(&text));
        assert_eq!(cache.answer(None).as_deref(), Some(text.as_bytes()));
        assert_eq!(
            cache.answer(Some(&[7; 32])).as_deref(),
            Some(text.as_bytes())
        );
        let known = KnownText::of(parsed(&text).list.text());
        let same = cache.answer(Some(&known.hash)).expect("an answer");
        assert!(same.len() < 600, "{} bytes", same.len());
        assert_eq!(
            known.apply(str::from_utf8(&same).expect("text")),
            Some(text)
        );
    }

    /// What a renewal costs: docs/directory.md has these figures.
    #[test]
    fn a_difference_is_as_long_as_what_relays_have_said_anew() {
        // Bytes of the list, and of the difference after an hour and after two.
        let costs = |every| {
            let list = |n| parsed(&hour_of(n, every, &[1, 2]));
            let mut cache = ListCache::default();
            (0..3).for_each(|n| cache = cache.with(&list(n)));
            let whole = cache.answer(None).expect("a list").len();
            let difference = |n| {
                let known = KnownText::of(list(n).list.text());
                cache.answer(Some(&known.hash)).expect("an answer").len()
            };
            (whole, difference(1), difference(0))
        };
        let (seldom, hourly) = (costs(10), costs(1));
        println!("every tenth relay: {seldom:?}; all: {hourly:?}");
        let (whole, one, two) = seldom;
        assert!(one < two && one < whole / 15, "{one}, {two} of {whole}");
        let (whole, one, two) = hourly;
        assert!(one == two && one < whole / 2, "{one}, {two} of {whole}");
    }

    #[test]
    fn no_more_earlier_lists_are_kept_than_of_a_day() {
        let mut cache = ListCache::default();
        for n in 0..30 {
            cache = cache.with(&parsed(&hour(n, &[1, 2])));
        }
        assert_eq!(cache.earlier.len(), EARLIER);
        let oldest = KnownText::of(parsed(&hour(5, &[1, 2])).list.text());
        assert_eq!(cache.earlier.front(), Some(&oldest));
    }
}
