//! How several who have the list are asked for it, authorities or relays that keep it ([`ask_for_list`]), and what a later one is made of by who has an
//! earlier one ([`KnownText`]). docs/directory.md, "What a client believes" and "Differences".
//!
//! All are asked, so that two lists for one time are noticed and nobody can keep a later one back, but only one for all of it: the others, when it has
//! answered, for what makes theirs of that. Who has the same answers with the signatures alone; what one makes up costs what the others' answers cost.
//! Nobody is trusted: what they answer is for [`crate::ListChecker`].

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use hoplite_crypto::onion::rsa::sha256;
use hoplite_overlay::Overlay;
use hoplite_wire::{
    Target,
    directory::{LIST, list_diff::ListDiff, split_signed},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    FetchError,
    fetch::{Answered, fetch_list},
};

/// The first of so many parts of the time that there is one is asked alone; then, while nobody has answered, one more with each.
const HEAD_STARTS: u32 = 8;

/// A list that is known, without its signatures: others may have been gathered elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownText {
    pub(crate) body: Arc<str>,
    pub(crate) hash: [u8; 32],
}

impl KnownText {
    pub(crate) fn of(body: &str) -> Self {
        Self {
            hash: sha256(body.as_bytes()),
            body: body.into(),
        }
    }

    /// What stands before the signatures of a list; what nobody has signed is none.
    pub(crate) fn of_signed(text: &str) -> Option<Self> {
        let (body, signatures) = split_signed(text).ok()?;
        (!signatures.is_empty()).then(|| Self::of(body))
    }

    /// The later list, if this is the difference to it.
    pub(crate) fn apply(&self, text: &str) -> Option<String> {
        let diff = ListDiff::parse(text).ok()?;
        (diff.from == self.hash).then_some(())?;
        let later = diff.apply(&self.body).ok()?;
        let fits = later.len() <= LIST && sha256(later.as_bytes()) == diff.to;
        fits.then_some(later)
    }
}

/// Asks `sources` for the list, the first in their order for all of it, or for the difference to the one that is known; what each answered, in their
/// order. All of it takes `limit` at most. A difference that makes no list is [`FetchError::Unfit`].
pub async fn ask_for_list(
    overlay: &dyn Overlay,
    sources: &[Target],
    known: Option<&KnownText>,
    limit: Duration,
) -> Vec<Result<Answered, FetchError>> {
    let (begin, head_start) = (Instant::now(), limit / HEAD_STARTS);
    let ask = |place: usize, source, known: Vec<KnownText>| async move {
        let left = limit.saturating_sub(begin.elapsed());
        (place, ask_one(overlay, source, &known, left).await)
    };
    let mut left = sources.iter().enumerate();
    let mut under_way = FuturesUnordered::new();
    let mut answers: Vec<(usize, Result<Answered, FetchError>)> = Vec::new();
    let (mut next, mut found) = (begin, None::<KnownText>);
    loop {
        tokio::select! {
            Some(answer) = under_way.next() => {
                answers.push(answer);
                let last = answers.last().and_then(|(_, answer)| answer.as_ref().ok());
                found = found.or_else(|| KnownText::of_signed(&last?.text));
                next = Instant::now();
            }
            // Who was asked first may take its time; or has come to nothing.
            () = sleep_until(next), if left.len() > 0 => {
                let all = if found.is_some() { left.len() } else { 1 };
                let known: Vec<_> = found.iter().chain(known).cloned().collect();
                let asked = left.by_ref().take(all);
                under_way.extend(asked.map(|(place, source)| ask(place, source, known.clone())));
                next = Instant::now() + head_start;
            }
            else => break,
        }
    }
    answers.sort_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The same of relays that keep the list, by their addresses.
pub async fn ask_caches(
    overlay: &dyn Overlay,
    caches: &[SocketAddr],
    known: Option<&KnownText>,
    limit: Duration,
) -> Vec<Result<Answered, FetchError>> {
    let caches: Vec<_> = caches.iter().copied().map(Target::from).collect();
    ask_for_list(overlay, &caches, known, limit).await
}

async fn ask_one(
    overlay: &dyn Overlay,
    source: &Target,
    known: &[KnownText],
    limit: Duration,
) -> Result<Answered, FetchError> {
    let hashes = known.iter().map(|known| &known.hash);
    let Answered { text, bytes } = fetch_list(overlay, source, hashes, limit).await?;
    if !ListDiff::is_one(&text) {
        return Ok(Answered { text, bytes });
    }
    let later = known.iter().find_map(|known| known.apply(&text));
    let text = later.ok_or(FetchError::Unfit)?;
    Ok(Answered { text, bytes })
}

#[cfg(test)]
mod tests {
    use hoplite_overlay::Stream;
    use hoplite_testing::Double;
    use hoplite_wire::{content_coding::Encoding, directory::list_diff::hashes};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream, DuplexStream, duplex};

    use super::*;
    use crate::{
        Client, Heard, ListCache, Refused, Store,
        testing::{START, descriptor, hour, list, signed_by, trust},
    };

    const LIMIT: Duration = Duration::from_secs(20);

    /// Who is asked.
    #[derive(Clone)]
    enum Asked {
        /// It gives what it has, as authorities and caches do.
        Has(ListCache),
        /// It says the same to everybody.
        Says(String),
        Hangs,
    }

    fn has(lists: &[String]) -> Asked {
        Asked::Has(ListCache::kept(lists.to_vec()))
    }

    /// An overlay on which these answer, by their ports.
    fn world(all: Vec<Asked>) -> (Double, Vec<Target>) {
        let places = (0..all.len()).filter_map(|n| u16::try_from(n).ok());
        let places = places.map(|port| Target::from(SocketAddr::from(([192, 0, 2, 1], port))));
        let places = places.collect();
        let overlay = Double::nothing().streams(move |_, target, _| {
            let (ours, theirs) = duplex(1 << 20);
            let asked = all.get(usize::from(target.port)).expect("there").clone();
            tokio::spawn(answer(theirs, asked));
            Box::pin(async { Ok(Stream::new(BufStream::new(ours))) })
        });
        (overlay, places)
    }

    async fn answer(mut stream: DuplexStream, asked: Asked) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let head = String::from_utf8(head).expect("text");
        let (coding, body) = match asked {
            Asked::Has(cache) => {
                assert!(head.contains("Accept-Encoding: deflate\r\n"), "{head}");
                let from = head
                    .lines()
                    .find_map(|line| line.strip_prefix("Hoplite-Diff-From: "));
                let from = from.map_or_else(Vec::new, hashes);
                let answer = cache.answer(&from).expect("a list");
                let [deflated, ..] = answer.parts(Encoding::Deflate);
                ("deflate", deflated.to_vec())
            }
            Asked::Says(text) => ("identity", text.into_bytes()),
            Asked::Hangs => return std::future::pending().await,
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("taken");
        stream.write_all(&body).await.expect("taken");
    }

    fn client() -> Client {
        Client::new(trust(3, 2), Store::in_memory().expect("made")).expect("empty")
    }

    /// What the client hears of those, and how many bytes come for it.
    async fn hears(
        client: &mut Client,
        asked: Vec<Asked>,
        now: u64,
    ) -> (Vec<Result<Heard, Refused>>, Vec<usize>) {
        let (overlay, places) = world(asked);
        let known = client.known_list(now);
        let answers = ask_for_list(&overlay, &places, known.as_ref(), LIMIT).await;
        assert_eq!(answers.len(), places.len());
        let answers: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        let bytes = answers.iter().map(|one| one.bytes).collect();
        let texts: Vec<_> = answers.into_iter().map(|one| one.text).collect();
        let heard = client.checker().check(&texts, now);
        (client.take(heard).expect("kept"), bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_begins_is_given_one_whole_list_and_of_all_others_their_signatures() {
        // Signatures are gathered by each for itself.
        let by = |signers: &[u8]| has(&[hour(0, signers)]);
        let mut client = client();
        let all = vec![by(&[1, 2]), by(&[2, 3]), by(&[1, 2, 3])];
        let (heard, bytes) = hears(&mut client, all, START).await;
        let same = Ok(Heard::Same);
        assert_eq!(heard, [Ok(Heard::Newer), same, same]);
        assert!(bytes[0] > 10_000, "{bytes:?}");
        assert!(bytes[1].max(bytes[2]) < 600, "{bytes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_renews_is_told_one_difference_and_of_all_others_their_signatures() {
        let lists: Vec<_> = (0..3).map(|n| hour(n, &[1, 2])).collect();
        let mut client = client();
        let first = client.heard(&lists[0], START).expect("kept");
        assert_eq!(first, Ok(Heard::Newer));
        let all = vec![has(&lists), has(&lists), has(&lists)];
        // Shortly before its list is over.
        let now = START + 3 * 3600 - 10;
        let (heard, bytes) = hears(&mut client, all, now).await;
        assert_eq!(heard[0], Ok(Heard::Newer));
        assert!((600..8000).contains(&bytes[0]), "{bytes:?}");
        assert!(bytes[1].max(bytes[2]) < 600, "{bytes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_no_later_list_yet_says_so_in_its_signatures_whoever_is_asked_first() {
        let lists: Vec<_> = (0..2).map(|n| hour(n, &[1, 2])).collect();
        for late in [0, 1] {
            let mut client = client();
            let first = client.heard(&lists[0], START).expect("kept");
            assert_eq!(first, Ok(Heard::Newer));
            let mut all = vec![has(&lists), has(&lists)];
            all[late] = has(&lists[..1]);
            let (heard, bytes) = hears(&mut client, all, START + 3600).await;
            assert!(heard.contains(&Ok(Heard::Newer)), "{heard:?}");
            assert!(bytes[late] < 600, "{bytes:?}");
            assert!(bytes[1 - late] < 8000, "{bytes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_keeps_the_later_list_back_or_has_another_for_its_time_is_found_out() {
        let lists: Vec<_> = (0..2).map(|n| hour(n, &[1, 2])).collect();
        let now = START + 3600;
        let mut client = client();
        let all = vec![has(&lists[..1]), has(&lists), has(&lists[..1])];
        let (heard, bytes) = hears(&mut client, all, now).await;
        assert_eq!(heard[1], Ok(Heard::Newer));
        assert!(bytes[1] < bytes[0] / 4, "{bytes:?}");
        let other = signed_by(&list(now, &[descriptor(7)]), &[1, 2]).to_string();
        let mut client = self::client();
        let all = vec![has(&lists), has(&[other]), has(&lists)];
        let (heard, _) = hears(&mut client, all, now).await;
        assert_eq!(heard[1], Err(Refused::Split));
        assert!(client.is_split());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_makes_things_up_costs_no_more_than_what_the_others_answer() {
        let good = [hour(0, &[1, 2])];
        let forged = good[0].replace("bandwidth 1000000", "bandwidth 9000000");
        for first in ["no list at all\n".to_owned(), String::new(), forged] {
            let mut client = client();
            let all = vec![Asked::Says(first), has(&good), has(&good)];
            let (heard, _) = hears(&mut client, all, START).await;
            assert!(heard.contains(&Ok(Heard::Newer)), "{heard:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_costs_a_moment_and_all_of_it_takes_no_longer_than_it_may() {
        let good = [hour(0, &[1, 2])];
        let begin = Instant::now();
        let (overlay, places) = world(vec![Asked::Hangs, Asked::Hangs, has(&good)]);
        let answers = ask_for_list(&overlay, &places, None, LIMIT).await;
        assert!(matches!(answers[0], Err(FetchError::TimedOut)));
        assert!(answers[2].is_ok());
        assert!(begin.elapsed() <= LIMIT + Duration::from_secs(1));
        let (overlay, places) = world(vec![Asked::Hangs; 12]);
        let begin = Instant::now();
        let answers = ask_for_list(&overlay, &places, None, LIMIT).await;
        assert_eq!(answers.len(), 12);
        assert!(begin.elapsed() <= LIMIT + Duration::from_secs(1));
        assert!(ask_for_list(&overlay, &[], None, LIMIT).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_takes_the_difference_of_one_honest_cache_among_liars() {
        let (earlier, later) = (hour(0, &[1, 2]), hour(1, &[2, 3]));
        let mut client = client();
        let now = START + 3600;
        assert_eq!(client.heard(&earlier, now).expect("kept"), Ok(Heard::Newer));
        let known = client.known_list(now).expect("one");
        let said = |cache: &ListCache| {
            let answer = cache.answer(&[known.hash]).expect("a difference");
            String::from_utf8(answer.text().to_vec()).expect("text")
        };
        // The cache has the earlier list with the signatures of others.
        let cache = ListCache::default().with(hour(0, &[1, 3]));
        let old = said(&cache);
        let good = said(&cache.with(later.clone()));
        let changed = good.replace("published 1", "published 2");
        assert_ne!(changed, good);
        let forged = later.replace("bandwidth 1000000", "bandwidth 9000000");
        let script = "hoplite-list-diff 1\n1,$d\n".to_owned();
        let says = [old, changed, forged, script, good].map(Asked::Says);
        let all = says.into_iter().chain([Asked::Hangs]).collect();
        let (overlay, places) = world(all);
        let answers = ask_for_list(&overlay, &places, Some(&known), LIMIT).await;
        assert!(matches!(answers[1], Err(FetchError::Unfit)));
        assert!(matches!(answers[3], Err(FetchError::Unfit)));
        assert!(matches!(answers[5], Err(FetchError::TimedOut)));
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

    #[tokio::test(start_paused = true)]
    async fn a_few_bytes_that_would_be_millions_cost_the_question() {
        let bomb = ListCache::default().with(format!(
            "{}\nsigned {} {}\n",
            "a".repeat(16 << 20),
            crate::testing::public(1),
            hoplite_wire::directory::Signature([7; 64])
        ));
        let (overlay, places) = world(vec![Asked::Has(bomb), has(&[hour(0, &[1, 2])])]);
        let answers = ask_for_list(&overlay, &places, None, LIMIT).await;
        assert!(matches!(answers[0], Err(FetchError::Unfit)));
        assert!(answers[1].is_ok());
    }
}
