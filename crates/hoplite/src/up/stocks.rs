//! Private tokens for the process that carries traffic, which may not read their files: it asks the other one for each, over a pair of sockets like
//! that of the marks, and gives it new ones to keep. A token has left its file before it is handed over, so none is shown twice whoever is killed.
//! Whoever takes the worker over can spend the tokens, put as many as there is room for, and show the issuer whose account it is.
//!
//! A message is a line of words. Question: `take`, `count`, `put`, `retain` or `account`, the issuer's place in the user's file, then a challenge, tokens or
//! ids of keys. Answer: `token` with one, `account` with its, `none`, `count` with a number, `done`, or `failed` and why.

use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    thread,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hoplite_crypto::Token;
use hoplite_wire::privacy_pass::PrivateToken;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use zeroize::Zeroizing;

use super::apart::pair;
use crate::{
    config::client::Issuer,
    say::Failure,
    wallet::{self, Files, Purse},
};

/// Bytes of a message: as many tokens as a file may ask for at once have room in it.
const MAX_MESSAGE: usize = 64 * 1024;

/// Tokens of one issuer that are kept at most: what the worker puts does not fill the disk.
const MOST: usize = 8192;

/// Serves the stocks of these issuers in a thread, until the other end, which is given back, is gone.
pub(super) fn serve(issuers: &[Issuer]) -> Result<OwnedFd, Failure> {
    let open = |issuer: &Issuer| wallet::open(issuer);
    let stocks = issuers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let failed = |error| {
        let remedy = "raise the limits of threads and open files";
        Failure::new("keeping private tokens", error, remedy)
    };
    let (ours, theirs) = pair().map_err(failed)?;
    let begun = thread::Builder::new().name("tokens".into());
    begun
        .spawn(move || answer_all(&ours, stocks))
        .map_err(failed)?;
    Ok(theirs)
}

fn answer_all(socket: &OwnedFd, mut stocks: Vec<Files>) {
    let mut asked = Zeroizing::new(vec![0; MAX_MESSAGE]);
    while let Some(question) = received(socket, &mut asked) {
        let answered = answer(question, &mut stocks);
        let answer = answered.unwrap_or_else(|why| Zeroizing::new(format!("failed {why}")));
        if send(socket, answer.as_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// The next message; `None` when the other end is gone, or says what is none.
fn received<'a>(socket: &OwnedFd, into: &'a mut [u8]) -> Option<&'a str> {
    // A message that is longer is cut off, and then none that is understood.
    let (length, _) = recv(socket, &mut *into, RecvFlags::empty()).ok()?;
    let message = into.get(..length).filter(|message| !message.is_empty())?;
    std::str::from_utf8(message).ok()
}

fn answer(question: &str, stocks: &mut [Files]) -> Result<Zeroizing<String>, String> {
    let told = |error: io::Error| error.to_string();
    let mut words = question.split(' ');
    let what = words.next().unwrap_or_default();
    let number: usize = words
        .next()
        .and_then(|it| it.parse().ok())
        .unwrap_or(usize::MAX);
    let stock = stocks.get_mut(number).ok_or("there is no such issuer")?;
    let said = match what {
        "take" => match Purse::take(stock, &hash(words.next())?).map_err(told)? {
            Some(token) => {
                let text = Zeroizing::new(token.to_text());
                format!("token {}", *text)
            }
            None => "none".into(),
        },
        "count" => {
            let count = Purse::count(stock, &hash(words.next())?).map_err(told)?;
            format!("count {count}")
        }
        "put" => {
            let tokens = words.map(|text| PrivateToken::from_text(text.as_bytes()));
            let tokens: Vec<_> = tokens
                .collect::<Result<_, _>>()
                .map_err(|_| "that is no token")?;
            let total = stock.stock.total().map_err(|error| error.to_string())?;
            if total.saturating_add(tokens.len()) > MOST {
                return Err("there are too many already".into());
            }
            Purse::put(stock, &tokens).map_err(told)?;
            "done".into()
        }
        "retain" => {
            let keys: Vec<_> = words
                .map(|word| hash(Some(word)))
                .collect::<Result<_, _>>()?;
            Purse::retain(stock, &keys).map_err(told)?;
            "done".into()
        }
        "account" => match stock.account().map_err(told)? {
            Some(token) => format!("account {}", token.reveal()),
            None => "none".into(),
        },
        _ => return Err("that is no question".into()),
    };
    Ok(Zeroizing::new(said))
}

fn hash(word: Option<&str>) -> Result<[u8; 32], String> {
    let bytes = word.and_then(|word| URL_SAFE_NO_PAD.decode(word).ok());
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "that is no digest".into())
}

/// The stock of an issuer as the worker has it.
#[derive(Debug)]
pub(super) struct Elsewhere {
    socket: OwnedFd,
    /// The issuer's place in the file.
    number: usize,
}

impl Elsewhere {
    pub(super) fn new(socket: OwnedFd, number: usize) -> Self {
        Self { socket, number }
    }

    /// Asks, and waits for the answer: as long as the file would take.
    fn ask<T>(
        &self,
        what: &str,
        with: impl Iterator<Item = Zeroizing<String>>,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> io::Result<T> {
        let mut question = Zeroizing::new(Vec::with_capacity(MAX_MESSAGE));
        write!(question, "{what} {}", self.number)?;
        for word in with {
            write!(question, " {}", *word)?;
        }
        if question.len() > MAX_MESSAGE {
            return Err(io::Error::other("that is too much at once"));
        }
        send(&self.socket, &question, SendFlags::NOSIGNAL)?;
        let mut answered = Zeroizing::new(vec![0; MAX_MESSAGE]);
        let gone = || io::Error::other("the process that keeps them is gone");
        let answer = received(&self.socket, &mut answered).ok_or_else(gone)?;
        let wrong = || {
            let why = answer
                .strip_prefix("failed ")
                .unwrap_or("it speaks nonsense");
            io::Error::other(why.to_owned())
        };
        read(answer).ok_or_else(wrong)
    }
}

fn text(hash: &[u8; 32]) -> Zeroizing<String> {
    Zeroizing::new(URL_SAFE_NO_PAD.encode(hash))
}

impl Purse for Elsewhere {
    fn take(&mut self, challenge: &[u8; 32]) -> io::Result<Option<PrivateToken>> {
        self.ask("take", std::iter::once(text(challenge)), |answer| {
            if answer == "none" {
                return Some(None);
            }
            let token = answer.strip_prefix("token ")?;
            PrivateToken::from_text(token.as_bytes()).ok().map(Some)
        })
    }

    fn count(&mut self, challenge: &[u8; 32]) -> io::Result<usize> {
        self.ask("count", std::iter::once(text(challenge)), |answer| {
            answer.strip_prefix("count ")?.parse().ok()
        })
    }

    fn put(&mut self, tokens: &[PrivateToken]) -> io::Result<()> {
        let texts = tokens.iter().map(|token| Zeroizing::new(token.to_text()));
        self.ask("put", texts, done)
    }

    fn retain(&mut self, keys: &[[u8; 32]]) -> io::Result<()> {
        self.ask("retain", keys.iter().map(text), done)
    }

    fn account(&mut self) -> io::Result<Option<Token>> {
        self.ask("account", std::iter::empty(), |answer| {
            if answer == "none" {
                return Some(None);
            }
            let token = answer.strip_prefix("account ")?;
            Some(Some(Token::new(token.to_owned())))
        })
    }
}

fn done(answer: &str) -> Option<()> {
    (answer == "done").then_some(())
}

#[cfg(test)]
mod tests {
    use hoplite_tokens::Stock;
    use hoplite_wire::privacy_pass::{Authenticator, TokenInput};

    use super::*;

    fn token(number: u8, challenge: u8, key: u8) -> PrivateToken {
        let input = TokenInput {
            nonce: [number; 32],
            challenge_digest: [challenge; 32],
            key_id: [key; 32],
        };
        PrivateToken::new(input, Authenticator::BlindRsa([0; 256]))
    }

    fn files(place: &tempfile::TempDir) -> Files {
        Files {
            stock: Stock::open(&place.path().join("stock")).expect("opens"),
            account: Some(place.path().join("account")),
        }
    }

    fn served(place: &tempfile::TempDir) -> OwnedFd {
        let stock = files(place);
        let (ours, theirs) = pair().expect("sockets");
        thread::spawn(move || answer_all(&ours, vec![stock]));
        theirs
    }

    #[test]
    fn the_other_process_has_the_accounts_token_as_its_file_is_now() {
        let place = tempfile::tempdir().expect("a directory");
        let mut stock = Elsewhere::new(served(&place), 0);
        let told = stock.account().expect_err("no file");
        assert!(told.to_string().contains("account: No such file"), "{told}");
        for written in [" a.b.c\n", "another one"] {
            std::fs::write(place.path().join("account"), written).expect("written");
            let shown = stock.account().expect("read").expect("there");
            assert_eq!(shown.reveal(), written.trim());
        }
        std::fs::write(place.path().join("account"), "\n").expect("written");
        stock.account().expect_err("none in it");
    }

    #[test]
    fn each_token_is_out_of_the_file_when_the_other_process_has_it() {
        let place = tempfile::tempdir().expect("a directory");
        let file = Stock::open(&place.path().join("stock")).expect("opens");
        let mut stock = Elsewhere::new(served(&place), 0);
        let tokens: Vec<_> = (0..64).map(|n| token(n, 1, n % 2)).collect();
        stock.put(&tokens).expect("put");
        assert_eq!(stock.count(&[1; 32]).expect("counted"), 64);
        assert_eq!(file.count(&[1; 32]).expect("counted"), 64);
        let taken = stock.take(&[1; 32]).expect("a stock");
        assert_eq!(taken.as_ref(), Some(&tokens[0]));
        assert_eq!(file.count(&[1; 32]).expect("counted"), 63);
        assert_eq!(stock.take(&[2; 32]).expect("a stock"), None);
        stock.retain(&[[1; 32]]).expect("a stock");
        assert_eq!(stock.count(&[1; 32]).expect("counted"), 32);
        let mut nobodys = Elsewhere::new(served(&place), 1);
        let told = nobodys.take(&[1; 32]).expect_err("no issuer");
        assert!(told.to_string().contains("no such issuer"), "{told}");
    }

    #[test]
    fn what_is_no_question_is_refused_and_no_disk_is_filled() {
        let place = tempfile::tempdir().expect("a directory");
        let socket = served(&place);
        let mut stocks = [files(&place)];
        for wrong in [
            "",
            "take",
            "take 0",
            "take 0 short",
            "put 0 token",
            "drop 0",
            "count x y",
        ] {
            assert!(answer(wrong, &mut stocks).is_err(), "{wrong}");
        }
        let mut stock = Elsewhere::new(socket, 0);
        let many: Vec<_> = (0..128).map(|n| token(n, 1, 1)).collect();
        for _ in 0..MOST / many.len() {
            stock.put(&many).expect("room");
        }
        let told = stock.put(&many[..1]).expect_err("no room");
        assert!(told.to_string().contains("too many"), "{told}");
    }
}
