//! A client's private tokens: kept ahead in a file, one spent for each connection to a relay that wants them, and asked for anew before they run out.
//! The issuer is asked directly, as an authority is, and never through a relay: whoever connects to it for a client would learn from it whose account
//! that is. When it is asked has nothing to do with the connections of that moment, unless there is no token left; and it is never a moment that a relay has
//! chosen, by refusing tokens or by ending connections until there is none left.
//!
//! Relays of the file have their tokens ahead. Relays of a list are strangers, and many: there are tokens for the names of those to which the client
//! connects, few at first; and who refuses some is shown no more for a while.

use std::{
    collections::BTreeSet,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hoplite_crypto::Token;
use hoplite_masque::TokenSource;
use hoplite_overlay::{Error, ErrorKind, Isolation, Opening, Reason, direct::Direct};
use hoplite_tokens::ChallengeDigests;
use hoplite_wire::privacy_pass::{PrivateToken, TokenType};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{self, Notify},
    time::{Instant, sleep, timeout_at},
};
use tracing::warn;

use crate::{
    client::random,
    config::client::{self, Issuer},
    say::Failure,
};
use server::{AskError, Server};
use standing::Standings;

pub(crate) use command::{Options, run};
pub(crate) use purse::{Files, Purse, file, open};

mod command;
mod purse;
mod server;
mod standing;

/// How often an issuer is asked what it failed to give, at first; and the longest pause.
const RETRY: Duration = Duration::from_secs(30);
const LONGEST_RETRY: Duration = Duration::from_secs(3600);
/// So many tokens are kept for a name of the list at first: twice as many each time that more are asked for, up to what the file says.
const FIRST_KEEP: usize = 4;
/// One in so many of those that are kept for a name, the last ones, is for connections without an isolation token: any program of the machine can make up
/// such tokens without end, and spend all that the issuer gives in a day. Where fewer are kept, as for a name of the list at first, none is.
const LAST: usize = 5;
/// Names of the list for which tokens were taken that are remembered at most.
const MOST_NAMES: usize = 64;
/// A relay of the list that has answered none of so many times what is kept for its name is shown no more for a while.
const MOST_UNANSWERED: usize = 4;

/// More are asked for within this time of when they are wanted, so that the issuer does not see when connections are made.
const APART: Duration = Duration::from_secs(60);
/// The same for so long after a relay has ended or refused connections, which may have made them wanted; until then none is asked for at once either, but
/// within the shorter time where there is none left.
const STIRRED: Duration = Duration::from_secs(300);
/// Within this time of a refusal the issuer's keys are read again, if tokens do not run low before.
const DOUBT: Duration = Duration::from_secs(3600);

/// The stocks of all issuers of a client's file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wallets(Vec<Arc<Wallet>>);

/// The stock of one issuer.
struct Wallet {
    issuer: Issuer,
    /// What tokens are kept for: the names of the file, and behind them those of the list, the last used at the end.
    kept: Mutex<Vec<Kept>>,
    /// How relays of the list deal with them.
    standings: Mutex<Standings>,
    /// A token was refused: keys may have been given up.
    doubts: AtomicBool,
    /// A relay has let the client in since it started.
    let_in: AtomicBool,
    /// When a relay last ended a connection, or refused one after some had been let in.
    stirred: Mutex<Option<Instant>>,
    purse: Mutex<Box<dyn Purse>>,
    /// When the issuer is asked next, if somebody has a reason to ask.
    due: Mutex<Option<Due>>,
    /// Told when that changes.
    changed: Notify,
    /// Held by who asks the issuer: others wait for what it gives.
    asking: sync::Mutex<()>,
    /// None once it has given some again.
    trouble: Mutex<Option<Trouble>>,
    underlay: Direct,
}

/// A moment that was drawn at random.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    /// From how long a time.
    within: Duration,
}

/// The issuer has given no tokens.
struct Trouble {
    why: String,
    at: Instant,
    /// How long it is left alone, unless it is shown another account's token then.
    pause: Duration,
    shown: Option<Token>,
}

/// A name that one or more relays take tokens for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    name: String,
    /// Of each type: the issuer's keys say which its tokens have, and may come to say another.
    challenges: ChallengeDigests,
}

/// A name for which tokens are kept.
#[derive(Clone, Debug)]
struct Kept {
    origin: Origin,
    /// The file names it.
    of_file: bool,
    /// How many are kept.
    keep: usize,
    /// A relay has let the client in for one since more were asked for: its tokens are not lost.
    serves: bool,
    /// They run low: more are asked for. Those of the file always are.
    low: bool,
}

/// The tokens for one relay.
#[derive(Debug)]
struct RelayTokens {
    wallet: Arc<Wallet>,
    relay: String,
    origin: Origin,
    /// Who it is, if it is of the list.
    listed: Option<String>,
}

/// What is left for one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokensLeft {
    /// The name that relays take them for.
    pub(crate) origin: String,
    /// How many.
    pub(crate) left: usize,
    /// Why the issuer last gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
}

impl Wallets {
    /// Takes the stock of each issuer that a relay of the file names, or relays of a list may, from `purse`. Asks for tokens where there are none,
    /// and goes on doing so. `purse` is told an issuer and its place in the file.
    pub(crate) async fn open(
        config: &client::Config,
        underlay: &Direct,
        purse: impl Fn((usize, &Issuer)) -> Result<Box<dyn Purse>, Failure>,
    ) -> Result<Self, Failure> {
        let wallets = Self::new(config, underlay, purse)?;
        for wallet in &wallets.0 {
            wallet.begin().await;
            let kept = Arc::clone(wallet);
            tokio::spawn(async move { kept.keep_full().await });
        }
        Ok(wallets)
    }

    /// The same, which asks nobody before a token is taken that is not there.
    fn new(
        config: &client::Config,
        underlay: &Direct,
        purse: impl Fn((usize, &Issuer)) -> Result<Box<dyn Purse>, Failure>,
    ) -> Result<Self, Failure> {
        let mut wallets = Vec::new();
        // Channels of circuits know no tokens.
        let is_listed = config.directory.is_some() && !config.is_onion();
        for (number, issuer) in config.issuer.iter().enumerate() {
            let named = |relay: &&client::Relay| relay.issuer.as_deref() == Some(&issuer.name);
            let names: BTreeSet<&str> = config.relay.iter().filter(named).map(origin).collect();
            if names.is_empty() && !is_listed {
                continue;
            }
            let kept = names.into_iter().map(|name| {
                let origin = Origin::new(issuer, name)?;
                Ok(Kept::of_file(origin, issuer.keep))
            });
            let kept = kept.collect::<Result<_, AskError>>().map_err(|error| {
                let doing = format!("asking {} for tokens", issuer.name);
                Failure::new(doing, error, "correct the names in the file")
            })?;
            let wallet = Arc::new(Wallet {
                issuer: issuer.clone(),
                kept: Mutex::new(kept),
                standings: Mutex::default(),
                doubts: AtomicBool::new(false),
                let_in: AtomicBool::new(false),
                stirred: Mutex::default(),
                purse: Mutex::new(purse((number, issuer))?),
                due: Mutex::default(),
                changed: Notify::new(),
                asking: sync::Mutex::new(()),
                trouble: Mutex::default(),
                underlay: underlay.clone(),
            });
            wallets.push(wallet);
        }
        Ok(Self(wallets))
    }

    /// Where tokens for this relay come from, if it wants such.
    pub(crate) fn source(&self, relay: &client::Relay) -> Option<Arc<dyn TokenSource>> {
        let named = relay.issuer.as_deref()?;
        let wallet = self.0.iter().find(|it| it.issuer.name == named)?;
        let origin = Origin::new(&wallet.issuer, origin(relay)).ok()?;
        let of_file = wallet
            .kept
            .lock()
            .iter()
            .any(|kept| kept.of_file && kept.origin == origin);
        // Its key is what it cannot share with another.
        let listed = || {
            relay
                .pin
                .map_or_else(|| relay.name.clone(), |pin| pin.to_string())
        };
        Some(Arc::new(RelayTokens {
            wallet: Arc::clone(wallet),
            relay: relay.name.clone(),
            origin,
            listed: (!of_file).then(listed),
        }))
    }

    /// Why the issuer of this relay's tokens last gave none.
    fn trouble(&self, relay: &client::Relay) -> Option<String> {
        let named = relay.issuer.as_deref()?;
        let wallet = self.0.iter().find(|it| it.issuer.name == named)?;
        let trouble = wallet.trouble.lock();
        let why = &trouble.as_ref()?.why;
        Some(format!(
            "none is left, and issuer {named} gives no more: {why}"
        ))
    }

    /// What is left for each name.
    pub(crate) fn left(&self) -> Vec<TokensLeft> {
        self.0.iter().flat_map(|wallet| wallet.left()).collect()
    }
}

/// The name that a relay takes tokens for.
fn origin(relay: &client::Relay) -> &str {
    relay.origin.as_deref().unwrap_or(&relay.name)
}

impl Origin {
    fn new(issuer: &Issuer, name: &str) -> Result<Self, AskError> {
        let challenges = ChallengeDigests::ahead(&issuer.name, name);
        Ok(Self {
            name: name.to_owned(),
            challenges: challenges.map_err(|_| AskError::Challenge)?,
        })
    }

    /// Takes a token for it out of the purse, whichever type it has: while an issuer changes from one to the other, relays take both.
    fn take(&self, purse: &mut dyn Purse) -> io::Result<Option<PrivateToken>> {
        for token_type in TokenType::ALL {
            if let Some(token) = purse.take(self.challenges.of(token_type))? {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    /// How many tokens for it there are.
    fn count(&self, purse: &mut dyn Purse) -> io::Result<usize> {
        let mut count: usize = 0;
        for token_type in TokenType::ALL {
            count = count.saturating_add(purse.count(self.challenges.of(token_type))?);
        }
        Ok(count)
    }
}

impl Kept {
    fn of_file(origin: Origin, keep: usize) -> Self {
        Self {
            origin,
            of_file: true,
            keep,
            serves: true,
            low: false,
        }
    }

    fn of_list(origin: Origin, most: usize) -> Self {
        Self {
            of_file: false,
            serves: false,
            ..Self::of_file(origin, FIRST_KEEP.min(most))
        }
    }
}

impl RelayTokens {
    fn forbidden(&self, what: &str) -> Error {
        let doing = format!("showing relay {} a token: {what}", self.relay);
        Error::new(ErrorKind::Forbidden, doing).because(Reason::Authentication)
    }

    fn taken(&self, use_last: bool) -> Result<Option<PrivateToken>, Error> {
        let taken = self.wallet.taken(&self.origin, use_last);
        let taken = taken.map_err(|error| {
            let refused = self.forbidden("their file cannot be used");
            refused.caused_by(error)
        });
        if let (Ok(Some(_)), Some(relay)) = (&taken, &self.listed) {
            let keep = self.wallet.issuer.keep;
            let most = keep.saturating_mul(MOST_UNANSWERED);
            self.wallet.standings.lock().shown(relay, most);
        }
        taken
    }
}

impl TokenSource for RelayTokens {
    fn is_given_up(&self) -> bool {
        let listed = self.listed.as_ref();
        listed.is_some_and(|relay| self.wallet.standings.lock().is_given_up(relay))
    }

    /// The next one; the last ones only without an isolation token. Where there is none the issuer is asked at once, once for all who wait, unless it has
    /// just failed to give any, or a relay may have chosen the moment.
    fn take(&self, isolation: &Isolation) -> Opening<'_, PrivateToken> {
        let use_last = *isolation == Isolation::default();
        Box::pin(async move {
            if self.is_given_up() {
                return Err(self.forbidden("it has refused too many, and is shown none for now"));
            }
            if let Some(token) = self.taken(use_last)? {
                return Ok(token);
            }
            self.wallet.fill_for(&self.origin, use_last).await;
            let left = self.origin.count(&mut **self.wallet.purse.lock());
            let why = if left.is_ok_and(|left| left > 0) {
                "those that are left are for flows without an isolation token"
            } else if self.wallet.is_stirred() {
                "they have run out while relays ended or refused connections, and the issuer is asked within a minute"
            } else {
                "they have run out, and the issuer has given no more"
            };
            self.taken(use_last)?.ok_or_else(|| self.forbidden(why))
        })
    }

    fn accepted(&self) {
        self.wallet.let_in.store(true, Ordering::Relaxed);
        if let Some(relay) = &self.listed {
            self.wallet.standings.lock().accepted(relay);
        }
        self.wallet.of(&self.origin, |kept| kept.serves = true);
    }

    fn refused(&self) {
        self.wallet.doubt();
        if let Some(relay) = &self.listed {
            self.wallet.standings.lock().refused(relay);
        }
    }

    fn ended(&self) {
        self.wallet.stir();
    }
}

impl Wallet {
    /// What there is after a start: only where there is nothing somebody waits for the issuer.
    async fn begin(&self) {
        let half = self.issuer.keep / 2;
        let left: Vec<usize> = self.left().iter().map(|it| it.left).collect();
        if left.contains(&0) {
            drop(self.fill(&self.asking.lock().await).await);
        } else if left.iter().any(|left| *left <= half) {
            self.ask_for_more();
        }
    }

    /// A relay has ended a connection, or refused one.
    fn stir(&self) {
        *self.stirred.lock() = Some(Instant::now());
    }

    /// Whether one has of late: it may have chosen this moment.
    fn is_stirred(&self) -> bool {
        let stirred = *self.stirred.lock();
        stirred.is_some_and(|at| at.elapsed() < STIRRED)
    }

    /// A token was refused. Tokens of a key that is given up are refused by everybody: the issuer's keys are read again. Soon if no relay has let the client
    /// in yet, which can do nothing without.
    fn doubt(&self) {
        self.doubts.store(true, Ordering::Relaxed);
        if self.let_in.load(Ordering::Relaxed) {
            self.stir();
            self.ask_within(DOUBT);
        } else {
            self.ask_for_more();
        }
    }

    /// Tokens run low.
    fn ask_for_more(&self) {
        self.ask_within(if self.is_stirred() { STIRRED } else { APART });
    }

    /// The issuer is asked at a random moment within this time. A moment that was drawn stays, unless it was from a longer time: who could have it drawn
    /// again and again would have it soon.
    fn ask_within(&self, within: Duration) {
        let mut due = self.due.lock();
        if due.is_some_and(|due| due.within <= within) {
            return;
        }
        let at = Instant::now() + Duration::from_secs(random()(within.as_secs()));
        let at = due.map_or(at, |due| due.at.min(at));
        *due = Some(Due { at, within });
        self.changed.notify_one();
    }

    /// Waits until the issuer is to be asked.
    async fn due(&self) {
        loop {
            let due = self.due.lock().map(|due| due.at);
            let changed = self.changed.notified();
            let Some(at) = due else {
                changed.await;
                continue;
            };
            if timeout_at(at, changed).await.is_err() {
                *self.due.lock() = None;
                return;
            }
        }
    }

    fn left(&self) -> Vec<TokensLeft> {
        let trouble = self.trouble.lock().as_ref().map(|it| it.why.clone());
        let mut purse = self.purse.lock();
        let of = |kept: &Kept| TokensLeft {
            left: kept.origin.count(&mut **purse).unwrap_or_default(),
            origin: kept.origin.name.clone(),
            trouble: trouble.clone(),
        };
        self.kept.lock().iter().map(of).collect()
    }

    /// How many tokens for this name are not for everybody.
    fn last(&self, origin: &Origin, use_last: bool) -> usize {
        let mut last = 0;
        if !use_last {
            self.of(origin, |kept| last = kept.keep / LAST);
        }
        last
    }

    /// Takes one out. From then on tokens are kept for this name; one of the list for which none was taken for longest makes room for it.
    fn taken(&self, origin: &Origin, use_last: bool) -> io::Result<Option<PrivateToken>> {
        let last = self.last(origin, use_last);
        let mut purse = self.purse.lock();
        let mut taken = None;
        if origin.count(&mut **purse)? > last {
            taken = origin.take(&mut **purse)?;
        }
        let left = origin.count(&mut **purse)?;
        drop(purse);
        let mut all = self.kept.lock();
        let place = all.iter().position(|kept| kept.origin == *origin);
        let mut kept = match place {
            Some(place) => all.remove(place),
            None => Kept::of_list(origin.clone(), self.issuer.keep),
        };
        // Where nobody was let in yet, what is there must do.
        kept.low |= left <= kept.keep / 2 && kept.serves;
        let is_low = kept.low;
        match place.filter(|_| kept.of_file) {
            Some(place) => all.insert(place, kept),
            None => all.push(kept),
        }
        let listed = all.iter().filter(|kept| !kept.of_file).count();
        if listed > MOST_NAMES
            && let Some(oldest) = all.iter().position(|kept| !kept.of_file)
        {
            all.remove(oldest);
        }
        drop(all);
        if taken.is_some() && is_low {
            self.ask_for_more();
        }
        Ok(taken)
    }

    /// Changes what is kept for a name.
    fn of(&self, origin: &Origin, change: impl FnOnce(&mut Kept)) {
        let mut all = self.kept.lock();
        if let Some(kept) = all.iter_mut().find(|kept| kept.origin == *origin) {
            change(kept);
        }
    }

    /// Asks for more when tokens run low, and again when the issuer failed; never ends.
    async fn keep_full(&self) {
        loop {
            self.due().await;
            while self.fill(&self.asking.lock().await).await.is_err() {
                sleep(RETRY).await;
                while self.is_in_trouble() {
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Whether the issuer is left alone, since it would give nothing now either.
    fn is_in_trouble(&self) -> bool {
        let trouble = self.trouble.lock();
        let Some(trouble) = trouble.as_ref() else {
            return false;
        };
        let same = || {
            let shown = self.account().ok().flatten();
            shown.as_ref().map(Token::reveal) == trouble.shown.as_ref().map(Token::reveal)
        };
        trouble.at.elapsed() < trouble.pause && same()
    }

    /// What the issuer is shown, as it is now.
    fn account(&self) -> Result<Option<Token>, AskError> {
        let read = self.purse.lock().account().map_err(AskError::Account)?;
        Ok(read.or_else(|| self.issuer.token.clone()))
    }

    /// Somebody waits for a token for this name, and goes without when a relay may have chosen the moment, or where the last ones are left, which are not for
    /// him.
    async fn fill_for(&self, origin: &Origin, use_last: bool) {
        let asking = self.asking.lock().await;
        let left = origin.count(&mut **self.purse.lock()).unwrap_or_default();
        if self.is_in_trouble() || left > self.last(origin, use_last) {
            return;
        }
        self.of(origin, |kept| kept.low = true);
        if left > 0 {
            // Who makes up isolation tokens chooses no moment either.
            self.ask_for_more();
        } else if self.is_stirred() || self.fill(&asking).await.is_err() {
            // Flows fail until then.
            self.ask_within(APART);
        }
    }

    /// Asks for what is missing of each name, and notes how that went.
    async fn fill(&self, _asking: &sync::MutexGuard<'_, ()>) -> Result<(), AskError> {
        let shown = self.account().ok().flatten();
        let filled = self.ask_for_missing().await;
        let mut trouble = self.trouble.lock();
        let last = trouble.take();
        if let Err(why) = &filled {
            warn!(issuer = self.issuer.name, "no new tokens for now: {why}");
            let pause = last.map_or(RETRY, |last| last.pause * 2);
            *trouble = Some(Trouble {
                why: why.to_string(),
                at: Instant::now(),
                pause: pause.min(LONGEST_RETRY),
                shown,
            });
        }
        filled
    }

    /// How many are missing of the names for which more are asked for.
    fn missing(&self) -> Result<Vec<(Origin, usize)>, AskError> {
        let mut purse = self.purse.lock();
        let mut missing = Vec::new();
        for kept in self
            .kept
            .lock()
            .iter()
            .filter(|kept| kept.of_file || kept.low)
        {
            let has = kept.origin.count(&mut **purse).map_err(AskError::Purse)?;
            missing.push((kept.origin.clone(), kept.keep.saturating_sub(has)));
        }
        missing.retain(|(_, missing)| *missing > 0);
        Ok(missing)
    }

    async fn ask_for_missing(&self) -> Result<(), AskError> {
        let doubts = self.doubts.load(Ordering::Relaxed);
        if !doubts && self.missing()?.is_empty() {
            return Ok(());
        }
        let server = Server::of(&self.issuer, &self.underlay);
        let keys = server.keys().await?;
        let listed: Vec<_> = keys.keys.iter().map(|it| *it.key.id()).collect();
        let retained = self.purse.lock().retain(&listed);
        retained.map_err(AskError::Purse)?;
        self.doubts.store(false, Ordering::Relaxed);
        // With those whose keys have been given up.
        for (origin, missing) in self.missing()? {
            let account = self.account()?;
            let tokens = server.tokens(&keys, &origin.challenges, missing, account.as_ref());
            let tokens = tokens.await?;
            let put = self.purse.lock().put(&tokens);
            put.map_err(AskError::Purse)?;
            let most = self.issuer.keep;
            self.of(&origin, |kept| {
                kept.low = false;
                if !kept.of_file && kept.serves {
                    kept.keep = kept.keep.saturating_mul(2).min(most);
                    kept.serves = false;
                }
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Wallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wallet")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use hoplite_tokens::Stock;
    use hoplite_wire::privacy_pass::{Authenticator, TokenInput};

    use super::{standing::MOST_REFUSED, *};

    /// So many tokens, whatever they are for.
    struct Bag(usize);

    impl Purse for Bag {
        fn take(&mut self, challenge: &[u8; 32]) -> io::Result<Option<PrivateToken>> {
            let input = TokenInput {
                nonce: [0; 32],
                challenge_digest: *challenge,
                key_id: [0; 32],
            };
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or(0);
            Ok(left.map(|_| PrivateToken::new(input, Authenticator::Voprf([0; 48]))))
        }

        fn count(&mut self, _: &[u8; 32]) -> io::Result<usize> {
            Ok(self.0)
        }

        fn put(&mut self, tokens: &[PrivateToken]) -> io::Result<()> {
            self.0 += tokens.len();
            Ok(())
        }

        fn retain(&mut self, _: &[[u8; 32]]) -> io::Result<()> {
            Ok(())
        }

        fn account(&mut self) -> io::Result<Option<Token>> {
            Ok(None)
        }
    }

    /// The tokens for relays of the list, by name and the name that they are for, from a stock of a hundred.
    fn listed(keep: usize) -> (Arc<Wallet>, impl Fn(&str, &str) -> RelayTokens) {
        let issuer = Issuer {
            name: "issuer.test".into(),
            address: "127.0.0.1:9".parse().expect("an address"),
            pin: None,
            token: None,
            token_file: None,
            stock: PathBuf::new(),
            keep,
        };
        let wallet = Arc::new(Wallet {
            issuer,
            kept: Mutex::default(),
            standings: Mutex::default(),
            doubts: AtomicBool::new(false),
            let_in: AtomicBool::new(false),
            stirred: Mutex::default(),
            purse: Mutex::new(Box::new(Bag(100))),
            due: Mutex::default(),
            changed: Notify::new(),
            asking: sync::Mutex::new(()),
            trouble: Mutex::default(),
            underlay: Direct::for_tunnels(),
        });
        let of = Arc::clone(&wallet);
        let tokens = move |relay: &str, origin: &str| RelayTokens {
            wallet: Arc::clone(&of),
            relay: relay.into(),
            origin: Origin::new(&of.issuer, origin).expect("a name"),
            listed: Some(relay.into()),
        };
        (wallet, tokens)
    }

    fn left(wallet: &Wallet) -> usize {
        wallet.purse.lock().count(&[0; 32]).expect("counted")
    }

    #[test]
    fn tokens_of_either_type_serve_a_relay_as_while_its_issuer_changes_from_one_to_the_other() {
        let place = tempfile::tempdir().expect("a directory");
        let mut files = Files {
            stock: Stock::open(&place.path().join("stock")).expect("opens"),
            account: None,
        };
        let origin = Origin::new(&listed(1).0.issuer, "a").expect("a name");
        let token = |authenticator: Authenticator| {
            let challenge_digest = *origin.challenges.of(authenticator.token_type());
            let input = TokenInput {
                nonce: [7; 32],
                challenge_digest,
                key_id: [0; 32],
            };
            PrivateToken::new(input, authenticator)
        };
        let [voprf, rsa] = [
            token(Authenticator::Voprf([1; 48])),
            token(Authenticator::BlindRsa([1; 256])),
        ];
        assert_ne!(voprf.challenge_digest(), rsa.challenge_digest());
        let both = [rsa, voprf];
        Purse::put(&mut files, &both).expect("put");
        assert_eq!(origin.count(&mut files).expect("counted"), 2);
        for _ in &both {
            let taken = origin.take(&mut files).expect("a stock");
            assert!(both.contains(&taken.expect("a token")));
        }
        assert_eq!(origin.take(&mut files).expect("a stock"), None);
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// Clients that use one relay, each with so many tokens.
    fn crowd(tokens: usize) -> Vec<(Arc<Wallet>, RelayTokens)> {
        let client = |_| {
            let (wallet, of) = listed(16);
            *wallet.purse.lock() = Box::new(Bag(tokens));
            let kept = Arc::clone(&wallet);
            tokio::spawn(async move { kept.keep_full().await });
            (wallet, of("exit", "a"))
        };
        (0..64).map(client).collect()
    }

    /// Of how many the issuer was asked. It is not there, which they have noted.
    fn asked(crowd: &[(Arc<Wallet>, RelayTokens)]) -> usize {
        let noted = |(wallet, _): &&(Arc<Wallet>, _)| wallet.trouble.lock().is_some();
        crowd.iter().filter(noted).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_refuses_between_connections_that_it_lets_in_has_no_client_ask_its_issuer_soon()
     {
        let crowd = crowd(100);
        for (_, exit) in &crowd {
            for _ in 0..MOST_REFUSED {
                exit.take(&Isolation::default()).await.expect("a token");
                exit.accepted();
                exit.take(&Isolation::default()).await.expect("a token");
                exit.refused();
            }
        }
        sleep(APART + RETRY).await;
        assert!(asked(&crowd) < crowd.len() / 4, "{}", asked(&crowd));
        for (_, exit) in &crowd {
            assert!(
                exit.take(&Isolation::default()).await.is_err(),
                "it is shown no more"
            );
        }
        sleep(DOUBT).await;
        assert_eq!(asked(&crowd), crowd.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_ends_connections_until_no_token_is_left_has_no_client_ask_its_issuer_then()
     {
        let crowd = crowd(FIRST_KEEP);
        for pause in [0, 1, 2, 4] {
            sleep(Duration::from_secs(pause)).await;
            for (_, exit) in &crowd {
                exit.take(&Isolation::default()).await.expect("a token");
                exit.accepted();
                exit.ended();
            }
        }
        for (_, exit) in &crowd {
            let why = exit
                .take(&Isolation::default())
                .await
                .expect_err("none is left")
                .to_string();
            assert!(why.contains("ended or refused connections"), "{why}");
        }
        assert!(asked(&crowd) < crowd.len() / 4, "{}", asked(&crowd));
        sleep(STIRRED + RETRY).await;
        assert_eq!(asked(&crowd), crowd.len());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_token_left_has_the_issuer_asked_at_once_unless_a_relay_has_just_ended_a_connection()
     {
        let (wallet, tokens) = listed(16);
        *wallet.purse.lock() = Box::new(Bag(0));
        let is_asked = || wallet.trouble.lock().is_some();
        tokens("exit", "a").ended();
        // Nor for the next one of the path, for whose name there never was any.
        assert!(
            tokens("other", "b")
                .take(&Isolation::default())
                .await
                .is_err()
                && !is_asked()
        );
        tokio::time::advance(STIRRED).await;
        assert!(
            tokens("other", "b")
                .take(&Isolation::default())
                .await
                .is_err()
                && is_asked()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_makes_up_isolation_tokens_leaves_the_last_ones_to_flows_without_one() {
        let (wallet, tokens) = listed(16);
        let relay = tokens("relay", "a");
        let kept = Kept::of_file(relay.origin.clone(), 16);
        wallet.kept.lock().push(kept);
        let place = tempfile::tempdir().expect("a directory");
        let token = |number: u8| {
            let input = TokenInput {
                nonce: [number; 32],
                challenge_digest: *relay.origin.challenges.of(TokenType::Voprf),
                key_id: [0; 32],
            };
            PrivateToken::new(input, Authenticator::Voprf([1; 48]))
        };
        let mut files = Files {
            stock: Stock::open(&place.path().join("stock")).expect("opens"),
            account: None,
        };
        let all: Vec<_> = (0..16).map(token).collect();
        Purse::put(&mut files, &all).expect("put");
        *wallet.purse.lock() = Box::new(files);
        for number in 0..13 {
            let made_up = Isolation::new(vec![number]);
            relay.take(&made_up).await.expect("a token");
        }
        for number in 13..100 {
            let made_up = Isolation::new(vec![number]);
            let refused = relay.take(&made_up).await.expect_err("none of the last");
            let why = refused.to_string();
            assert!(why.contains("without an isolation token"), "{why}");
        }
        let is_asked = || wallet.trouble.lock().is_some();
        assert!(!is_asked() && wallet.due.lock().is_some(), "at random");
        for _ in 0..3 {
            let token = relay.take(&Isolation::default()).await;
            token.expect("one of the last");
        }
        let token = relay.take(&Isolation::default()).await;
        assert!(token.is_err() && is_asked(), "none is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_was_never_let_in_reads_the_keys_soon_and_one_that_was_once_whatever_is_refused()
     {
        let within = |wallet: &Wallet| wallet.due.lock().map(|due| due.within);
        let (wallet, tokens) = listed(16);
        tokens("first", "a").refused();
        assert_eq!(within(&wallet), Some(APART));
        let (wallet, tokens) = listed(16);
        tokens("first", "a").accepted();
        tokens("exit", "b").refused();
        let drawn = wallet.due.lock().expect("drawn").at;
        for n in 0..100 {
            tokens(&n.to_string(), "b").refused();
        }
        assert_eq!(within(&wallet), Some(DOUBT));
        assert_eq!(wallet.due.lock().expect("drawn").at, drawn);
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_of_the_list_that_refuses_tokens_is_shown_three_and_then_ever_fewer() {
        let (wallet, tokens) = listed(16);
        let liar = tokens("liar", "a");
        for _ in 0..3 {
            liar.take(&Isolation::default()).await.expect("a token");
            liar.refused();
        }
        for hours in [1u32, 2, 4] {
            assert!(liar.take(&Isolation::default()).await.is_err(), "{hours}");
            // Others that have the same name are not taken for it.
            tokens("other", "a")
                .take(&Isolation::default())
                .await
                .expect("a token");
            let before = left(&wallet);
            assert!(liar.take(&Isolation::default()).await.is_err());
            assert_eq!(left(&wallet), before);
            tokio::time::advance(HOUR * hours).await;
            liar.take(&Isolation::default()).await.expect("a token");
            liar.refused();
        }
        tokio::time::advance(HOUR * 24).await;
        liar.take(&Isolation::default()).await.expect("a token");
        liar.accepted();
        for _ in 0..2 {
            liar.take(&Isolation::default())
                .await
                .expect("it has let the client in");
            liar.refused();
        }
        liar.take(&Isolation::default()).await.expect("a token");
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_of_the_list_that_takes_connections_and_never_answers_has_an_end_of_tokens() {
        let (wallet, tokens) = listed(4);
        let silent = tokens("silent", "a");
        let mut shown = 0;
        while silent.take(&Isolation::default()).await.is_ok() {
            shown += 1;
        }
        assert_eq!((shown, left(&wallet)), (16, 84));
    }

    #[tokio::test(start_paused = true)]
    async fn more_tokens_are_asked_for_only_for_names_of_relays_that_let_the_client_in() {
        let (wallet, tokens) = listed(16);
        wallet.purse.lock().put(&[]).expect("put");
        *wallet.purse.lock() = Box::new(Bag(3));
        let (good, bad) = (tokens("good", "a"), tokens("bad", "b"));
        let is_low = |tokens: &RelayTokens| {
            let kept = wallet.kept.lock();
            let mut kept = kept.iter();
            kept.any(|kept| kept.origin == tokens.origin && kept.low)
        };
        bad.take(&Isolation::default()).await.expect("a token");
        assert!(!is_low(&bad));
        good.accepted();
        good.take(&Isolation::default()).await.expect("a token");
        good.accepted();
        good.take(&Isolation::default()).await.expect("a token");
        assert!(is_low(&good) && !is_low(&bad));
        // However many names relays of a list have.
        *wallet.purse.lock() = Box::new(Bag(200));
        for n in 0..100 {
            let name = n.to_string();
            tokens(&name, &name)
                .take(&Isolation::default())
                .await
                .expect("a token");
        }
        assert_eq!(wallet.kept.lock().len(), MOST_NAMES);
    }
}
