//! A microdescriptor: what the consensus leaves out of a relay, named there by its hash. dir-spec "Computing microdescriptors".

use super::{
    FAMILY, ROUTERS,
    items::{Item, Items, base64, hex},
};
use crate::directory::{Malformed, Ports};

/// A microdescriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Microdescriptor<'a> {
    /// What its SHA-256 is over.
    pub text: &'a str,
    /// The onion key, X25519.
    pub ntor: [u8; 32],
    /// The Ed25519 identity.
    pub ed25519: Option<[u8; 32]>,
    /// To which ports it connects over IPv4, if to any.
    pub exit: Option<Ports>,
    /// RSA identities of relays that it calls its family; it counts where they say so too.
    pub family: Vec<[u8; 20]>,
    /// Its proven families: relays that share one are of one family (proposal 321).
    pub family_ids: Vec<String>,
}

impl<'a> Microdescriptor<'a> {
    /// Reads all that stand one behind the other. One without an onion key cannot be used, and is left out.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse_all(text: &'a str) -> Result<Vec<Self>, Malformed> {
        let mut items = Items::of(text)?;
        let (mut found, mut open) = (Vec::new(), None::<(usize, Self)>);
        let mut before = items.clone();
        let mut end = 0;
        while let Some(item) = items.next()? {
            if item.keyword == "onion-key" {
                close(open.take(), end, &items, &mut found)?;
                open = Some((item.start, Self::default()));
            } else if let Some((_, descriptor)) = &mut open {
                descriptor.take(&item, &items)?;
            } else {
                return Err(before.wrong("no microdescriptor"));
            }
            before = items.clone();
            end = items.position();
        }
        close(open, end, &items, &mut found)?;
        Ok(found)
    }

    fn take(&mut self, item: &Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        let mut words = item.arguments.split_ascii_whitespace();
        match item.keyword {
            "ntor-onion-key" => {
                let key = words.next().and_then(base64);
                self.ntor = key.ok_or_else(|| items.wrong("ntor-onion-key"))?;
            }
            "id" if words.next() == Some("ed25519") => {
                let key = words.next().and_then(base64);
                self.ed25519 = Some(key.ok_or_else(|| items.wrong("id ed25519"))?);
            }
            "p" => self.exit = ports(item.arguments),
            "family" => {
                let digits = words.filter_map(|word| word.strip_prefix('$')?.get(..40));
                self.family = digits.filter_map(hex).take(FAMILY).collect();
            }
            "family-ids" => {
                self.family_ids = words.take(FAMILY).map(str::to_owned).collect();
            }
            _ => {}
        }
        Ok(())
    }
}

fn close<'a>(
    open: Option<(usize, Microdescriptor<'a>)>,
    end: usize,
    items: &Items<'a>,
    found: &mut Vec<Microdescriptor<'a>>,
) -> Result<(), Malformed> {
    let Some((start, descriptor)) = open else {
        return Ok(());
    };
    if found.len() >= ROUTERS {
        return Err(items.wrong("too many microdescriptors"));
    }
    if descriptor.ntor != [0; 32] {
        let text = items.until(start, end)?;
        found.push(Microdescriptor { text, ..descriptor });
    }
    Ok(())
}

/// `accept 80,443` or `reject 25,135-139`; what cannot be read is no exit.
fn ports(summary: &str) -> Option<Ports> {
    let (word, list) = summary.trim_end().split_once(' ')?;
    match word {
        "accept" => list.parse().ok(),
        "reject" => list.parse::<Ports>().ok()?.others(),
        _ => None,
    }
}
