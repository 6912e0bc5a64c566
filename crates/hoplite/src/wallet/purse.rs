//! Where tokens that are not spent yet are kept, and whose account they are of.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use hoplite_crypto::Token;
use hoplite_tokens::Stock;
use hoplite_wire::privacy_pass::PrivateToken;
use zeroize::Zeroizing;

use crate::{
    config::{self, client::Issuer},
    say::Failure,
};

/// Bytes of an account's token, beyond which nothing of its file is read.
const MOST_ACCOUNT: usize = 16 << 10;

/// Tokens that are not spent yet, and whose account it is, wherever their files are.
pub(crate) trait Purse: Send {
    /// As [`Stock::take`].
    fn take(&mut self, challenge: &[u8; 32]) -> io::Result<Option<PrivateToken>>;
    /// As [`Stock::count`].
    fn count(&mut self, challenge: &[u8; 32]) -> io::Result<usize>;
    /// As [`Stock::put`].
    fn put(&mut self, tokens: &[PrivateToken]) -> io::Result<()>;
    /// As [`Stock::retain`].
    fn retain(&mut self, keys: &[[u8; 32]]) -> io::Result<()>;
    /// What the issuer is shown, if it is in a file of its own: that of an identity provider lives for minutes, and is written anew.
    fn account(&mut self) -> io::Result<Option<Token>>;
}

/// The files that the client's names of one issuer.
pub(crate) struct Files {
    pub(crate) stock: Stock,
    pub(crate) account: Option<PathBuf>,
}

impl Purse for Files {
    fn take(&mut self, challenge: &[u8; 32]) -> io::Result<Option<PrivateToken>> {
        self.stock.take(challenge).map_err(io::Error::other)
    }

    fn count(&mut self, challenge: &[u8; 32]) -> io::Result<usize> {
        self.stock.count(challenge).map_err(io::Error::other)
    }

    fn put(&mut self, tokens: &[PrivateToken]) -> io::Result<()> {
        self.stock.put(tokens).map_err(io::Error::other)
    }

    fn retain(&mut self, keys: &[[u8; 32]]) -> io::Result<()> {
        let retained = self.stock.retain(keys);
        retained.map(drop).map_err(io::Error::other)
    }

    fn account(&mut self) -> io::Result<Option<Token>> {
        let Some(path) = &self.account else {
            return Ok(None);
        };
        let unread =
            |why: &dyn fmt::Display| io::Error::other(format!("{}: {why}", path.display()));
        let file = File::open(path).map_err(|error| unread(&error))?;
        let mut text = Zeroizing::new(String::with_capacity(MOST_ACCOUNT));
        let read = file.take(MOST_ACCOUNT as u64).read_to_string(&mut text);
        read.map_err(|error| unread(&error))?;
        let token = config::trimmed(std::mem::take(&mut *text));
        token
            .map(Some)
            .ok_or_else(|| unread(&"there is no token in it"))
    }
}

/// Those of an issuer.
pub(crate) fn open(issuer: &Issuer) -> Result<Files, Failure> {
    let stock = Stock::open(&issuer.stock).map_err(|error| {
        let doing = format!("opening the tokens in {}", issuer.stock.display());
        Failure::new(doing, error, "then start it again")
    })?;
    Ok(Files {
        stock,
        account: issuer.token_file.clone(),
    })
}

/// The same, for [`Wallets::open`](super::Wallets::open).
pub(crate) fn file((_, issuer): (usize, &Issuer)) -> Result<Box<dyn Purse>, Failure> {
    Ok(Box::new(open(issuer)?))
}
