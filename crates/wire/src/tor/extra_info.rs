//! What a relay tells of its last days: its extra-info document, and the statistics in it. Grammar only; the document is signed as a server descriptor
//! is (`hoplite_directory::tor`), and what figures mean and how they are hidden is the relay's (`hoplite_relay::statistics`).
//! dir-spec "Extra-info document format". Lines that are not known are skipped, as others' documents have more of them.
//!
//! Two lines are ours: `hoplite-circuits` (circuits that were begun), and `hoplite-noise`, which says of each line how it was hidden, as Tor's
//! `hidserv-*` lines say of themselves: what one person's day changes at most (`delta_f`), the budget (`epsilon`), the rounding (`bin_size`).

use std::{fmt, str::FromStr};

use super::{Item, Items, date, hex, number, once, seconds, to_hex};
use crate::{
    directory::Malformed,
    tor::server_descriptor::{ED25519_SIGNATURE, is_nickname, put_certificate},
};

/// Bytes of an extra-info document; C tor takes no more.
pub const EXTRA_INFO: usize = 50_000;
/// Intervals of one history, ports of one line, and lines that one `hoplite-noise` speaks of.
pub const ENTRIES: usize = 64;

/// An extra-info document.
#[derive(Clone, PartialEq, Eq)]
pub struct ExtraInfo {
    /// As in the descriptor.
    pub nickname: String,
    /// As in the descriptor.
    pub rsa_id: [u8; 20],
    /// As in the descriptor.
    pub signing: Vec<u8>,
    /// As in the descriptor.
    pub published: u64,
    /// What it tells.
    pub statistics: Statistics,
}

/// Statistics, each of which may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that were read.
    pub read: Option<History>,
    /// Bytes that were written.
    pub written: Option<History>,
    /// How channels were used.
    pub directions: Option<(Interval, Directions)>,
    /// Circuits that were begun at the relay.
    pub circuits: Option<(Interval, u64)>,
    /// What an exit did.
    pub exit: Option<ExitStatistics>,
    /// What was done for onion services.
    pub onion_services: Option<OnionServiceStatistics>,
    /// What a directory was asked for.
    pub directory: Option<DirectoryStatistics>,
    /// PADDING cells of channels.
    pub padding: Option<PaddingStatistics>,
    /// When descriptors of files were last too few, in seconds since 1970.
    pub descriptors_exhausted: Option<u64>,
    /// How lines are hidden, by their keywords.
    pub noise: Vec<(String, Noise)>,
}

/// A time that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// When it ended, in seconds since 1970.
    pub end: u64,
    /// Its seconds.
    pub length: u64,
}

/// What was counted in each of several intervals, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The last; the others are as long.
    pub last: Interval,
    /// The oldest first; at most [`ENTRIES`].
    pub bytes: Vec<u64>,
}

/// Connections in stretches of ten seconds, by what they carried in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    /// Less than 20 KiB.
    pub below: u64,
    /// At least ten times more was read than written.
    pub read: u64,
    /// The other way round.
    pub written: u64,
    /// Both.
    pub both: u64,
}

/// Figures by port; `None` is all other ports.
pub type ByPort = Vec<(Option<u16>, u64)>;

/// What an exit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitStatistics {
    /// When.
    pub interval: Interval,
    /// KiB to targets.
    pub kibibytes_written: ByPort,
    /// KiB from targets.
    pub kibibytes_read: ByPort,
    /// Streams.
    pub streams: ByPort,
}

/// What was done for onion services of version 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnionServiceStatistics {
    /// When.
    pub interval: Interval,
    /// RELAY cells on joined circuits.
    pub rendezvous_cells: Option<Obfuscated>,
    /// Services whose descriptors were published here.
    pub onions_seen: Option<Obfuscated>,
}

/// What a directory was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryStatistics {
    /// When.
    pub interval: Interval,
    /// Consensuses that were given, wherever to.
    pub consensuses: u64,
}

/// PADDING cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddingStatistics {
    /// When.
    pub interval: Interval,
    /// What counts are rounded to.
    pub bin_size: u64,
    /// That were sent.
    pub written: u64,
    /// That came.
    pub read: u64,
}

/// A figure with its noise, which may have made it negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obfuscated {
    /// The figure.
    pub value: i64,
    /// What is in it.
    pub noise: Noise,
}

/// How a figure is hidden: by Laplace noise of the scale `delta_f / epsilon`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// By how much one person's day changes it at most.
    pub delta_f: u64,
    /// By what factor at most (its logarithm) that changes the probability of what is told.
    pub epsilon: Epsilon,
    /// What it is rounded to.
    pub bin_size: u64,
}

/// In hundredths, and more than none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epsilon(u32);

impl Epsilon {
    /// What Tor's relays state of what they tell of onion services: 0.30.
    pub const TOR: Self = Self(30);

    /// None of zero.
    pub const fn hundredths(hundredths: u32) -> Option<Self> {
        if hundredths == 0 {
            None
        } else {
            Some(Self(hundredths))
        }
    }

    /// In hundredths.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl ExtraInfo {
    /// Writes it until the space behind which its Ed25519 signature stands.
    pub fn write(&self) -> String {
        let mut text = format!("extra-info {} {}\n", self.nickname, to_hex(&self.rsa_id));
        put_certificate(&self.signing, &mut text);
        text.push_str(&format!("published {}\n", date(self.published)));
        self.statistics.write(&mut text);
        text.push_str(ED25519_SIGNATURE);
        text.push(' ');
        text
    }
}

/// Whose document it is, when it was published, and what it tells; none of its signatures is looked at.
#[derive(Clone, PartialEq, Eq)]
pub struct Told {
    /// The relay's name.
    pub nickname: String,
    /// Its RSA identity.
    pub rsa_id: [u8; 20],
    /// In seconds since 1970.
    pub published: u64,
    /// What it tells.
    pub statistics: Statistics,
}

impl Told {
    /// Reads one extra-info document.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut items = Items::within(text, EXTRA_INFO, EXTRA_INFO)?;
        let head = items.next()?.filter(|item| item.keyword == "extra-info");
        let head = head.and_then(|item| named(item.arguments));
        let (nickname, rsa_id) = head.ok_or_else(|| items.wrong("no extra-info document"))?;
        let (mut fields, mut published) = (Fields::default(), None);
        while let Some(item) = items.next()? {
            match item.keyword {
                "published" => once(&mut published, seconds(item.arguments), &items)?,
                _ => fields.take(&item, &items)?,
            }
        }
        Ok(Self {
            nickname,
            rsa_id,
            published: published.ok_or_else(|| items.wrong("it does not say when"))?,
            statistics: fields.whole(&items)?,
        })
    }

    /// Each document of a text of many, as `/tor/extra/all` has them: what cannot be read is an error in its place.
    pub fn parse_all(text: &str) -> impl Iterator<Item = Result<Self, Malformed>> {
        let mut rest = text.find(START).and_then(|at| text.get(at..));
        std::iter::from_fn(move || {
            let whole = rest.take()?;
            let next = whole.get(1..).and_then(|tail| tail.find(NEXT));
            // Behind the line feed that `NEXT` begins with.
            let end = next.map_or(whole.len(), |at| at.saturating_add(2));
            rest = whole.get(end..).filter(|tail| !tail.is_empty());
            Some(Self::parse(whole.get(..end).unwrap_or_default()))
        })
    }
}

const START: &str = "extra-info ";
const NEXT: &str = "\nextra-info ";

fn named(arguments: &str) -> Option<(String, [u8; 20])> {
    let (nickname, rsa_id) = arguments.split_once(' ')?;
    is_nickname(nickname).then_some(())?;
    Some((nickname.to_owned(), hex(rsa_id)?))
}

// The lines of statistics, as they stand in an extra-info document; the relay's file and our own directory have them too.

impl Statistics {
    /// Writes the lines.
    pub fn write(&self, text: &mut String) {
        let mut line = |keyword: &str, said: &dyn fmt::Display| {
            text.push_str(&format!("{keyword} {said}\n"));
        };
        if let Some(history) = &self.written {
            line("write-history", history);
        }
        if let Some(history) = &self.read {
            line("read-history", history);
        }
        if let Some(directory) = &self.directory {
            line("dirreq-stats-end", &directory.interval);
            line("dirreq-v3-reqs", &format!("??={}", directory.consensuses));
        }
        if let Some((interval, directions)) = &self.directions {
            line("conn-bi-direct", &format!("{interval} {directions}"));
        }
        if let Some(exit) = &self.exit {
            line("exit-stats-end", &exit.interval);
            line("exit-kibibytes-written", &ports(&exit.kibibytes_written));
            line("exit-kibibytes-read", &ports(&exit.kibibytes_read));
            line("exit-streams-opened", &ports(&exit.streams));
        }
        if let Some(services) = &self.onion_services {
            line("hidserv-v3-stats-end", &services.interval);
            if let Some(cells) = &services.rendezvous_cells {
                line("hidserv-rend-v3-relayed-cells", cells);
            }
            if let Some(seen) = &services.onions_seen {
                line("hidserv-dir-v3-onions-seen", seen);
            }
        }
        if let Some(padding) = &self.padding {
            line("padding-counts", padding);
        }
        if let Some(at) = self.descriptors_exhausted {
            line("overload-fd-exhausted", &format!("1 {}", date(at)));
        }
        if let Some((interval, circuits)) = &self.circuits {
            line("hoplite-circuits", &format!("{interval} {circuits}"));
        }
        if !self.noise.is_empty() {
            let said = self.noise.iter();
            let said = said.map(|(keyword, noise)| format!("{keyword}={}", noise.short()));
            line("hoplite-noise", &said.collect::<Vec<_>>().join(" "));
        }
    }

    /// Reads lines, and nothing but lines; what is not known is skipped.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut items = Items::within(text, EXTRA_INFO, 0)?;
        let mut fields = Fields::default();
        while let Some(item) = items.next()? {
            fields.take(&item, &items)?;
        }
        fields.whole(&items)
    }
}

/// What was read so far.
#[derive(Default)]
struct Fields {
    said: Statistics,
    noise: Option<Vec<(String, Noise)>>,
    exit: Option<Interval>,
    kibibytes_written: Option<ByPort>,
    kibibytes_read: Option<ByPort>,
    streams: Option<ByPort>,
    onion_services: Option<Interval>,
    rendezvous_cells: Option<Obfuscated>,
    onions_seen: Option<Obfuscated>,
    directory: Option<Interval>,
    consensuses: Option<u64>,
}

impl Fields {
    fn take(&mut self, item: &Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        let (said, text) = (&mut self.said, item.arguments);
        match item.keyword {
            "write-history" => once(&mut said.written, history(text), items),
            "read-history" => once(&mut said.read, history(text), items),
            "conn-bi-direct" => once(&mut said.directions, directions(text), items),
            "hoplite-circuits" => once(&mut said.circuits, circuits(text), items),
            "padding-counts" => once(&mut said.padding, padding(text), items),
            "overload-fd-exhausted" => {
                let at = text.strip_prefix("1 ").and_then(seconds);
                once(&mut said.descriptors_exhausted, at, items)
            }
            "hoplite-noise" => once(&mut self.noise, noises(text), items),
            "exit-stats-end" => once(&mut self.exit, only_interval(text), items),
            "exit-kibibytes-written" => once(&mut self.kibibytes_written, by_port(text), items),
            "exit-kibibytes-read" => once(&mut self.kibibytes_read, by_port(text), items),
            "exit-streams-opened" => once(&mut self.streams, by_port(text), items),
            "hidserv-v3-stats-end" => once(&mut self.onion_services, only_interval(text), items),
            "hidserv-rend-v3-relayed-cells" => {
                once(&mut self.rendezvous_cells, obfuscated(text), items)
            }
            "hidserv-dir-v3-onions-seen" => once(&mut self.onions_seen, obfuscated(text), items),
            "dirreq-stats-end" => once(&mut self.directory, only_interval(text), items),
            "dirreq-v3-reqs" => once(&mut self.consensuses, all_countries(text), items),
            _ => Ok(()),
        }
    }

    fn whole(mut self, items: &Items<'_>) -> Result<Statistics, Malformed> {
        let figures = (self.kibibytes_written, self.kibibytes_read, self.streams);
        self.said.exit = match (self.exit, figures) {
            (Some(interval), (Some(kibibytes_written), Some(kibibytes_read), Some(streams))) => {
                Some(ExitStatistics {
                    interval,
                    kibibytes_written,
                    kibibytes_read,
                    streams,
                })
            }
            (None, (None, None, None)) => None,
            _ => return Err(items.wrong("half of an exit's statistics")),
        };
        self.said.onion_services = match self.onion_services {
            Some(interval) => Some(OnionServiceStatistics {
                interval,
                rendezvous_cells: self.rendezvous_cells,
                onions_seen: self.onions_seen,
            }),
            None if self.rendezvous_cells.is_none() && self.onions_seen.is_none() => None,
            None => return Err(items.wrong("half of onion services' statistics")),
        };
        let directory = self.directory.zip(self.consensuses);
        self.said.directory = directory.map(|(interval, consensuses)| DirectoryStatistics {
            interval,
            consensuses,
        });
        self.said.noise = self.noise.unwrap_or_default();
        Ok(self.said)
    }
}

/// `YYYY-MM-DD HH:MM:SS (NSEC s)`, and what stands behind it.
fn interval(text: &str) -> Option<(Interval, &str)> {
    let (end, rest) = text.split_once(" (")?;
    let (length, rest) = rest.split_once(" s)")?;
    let interval = Interval {
        end: seconds(end)?,
        length: number(length).filter(|length| *length > 0)?,
    };
    Some((interval, rest.strip_prefix(' ').unwrap_or(rest)))
}

fn only_interval(text: &str) -> Option<Interval> {
    interval(text)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(interval, _)| interval)
}

fn history(text: &str) -> Option<History> {
    let (last, values) = interval(text)?;
    // A relay that was not up for a whole interval yet tells of none.
    let values = values.split(',').filter(|_| !values.is_empty());
    let bytes: Vec<u64> = values.map(number).take(ENTRIES).collect::<Option<_>>()?;
    Some(History { last, bytes })
}

fn directions(text: &str) -> Option<(Interval, Directions)> {
    let (interval, values) = interval(text)?;
    let mut values = values.split(',').map(number);
    let directions = Directions {
        below: values.next()??,
        read: values.next()??,
        written: values.next()??,
        both: values.next()??,
    };
    values.next().is_none().then_some((interval, directions))
}

fn circuits(text: &str) -> Option<(Interval, u64)> {
    let (interval, count) = interval(text)?;
    Some((interval, number(count)?))
}

fn by_port(text: &str) -> Option<ByPort> {
    let entries = text.split(',').filter(|_| !text.is_empty()).take(ENTRIES);
    let entry = |entry: &str| {
        let (port, value) = entry.split_once('=')?;
        let port = match port {
            "other" => None,
            port => Some(number(port).filter(|port| *port > 0)?),
        };
        Some((port, number(value)?))
    };
    entries.map(entry).collect()
}

fn padding(text: &str) -> Option<PaddingStatistics> {
    let (interval, values) = interval(text)?;
    let value = |key: &str| {
        let mut found = values.split(' ').filter_map(|pair| pair.split_once('='));
        found.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    Some(PaddingStatistics {
        interval,
        bin_size: number(value("bin-size")?)?,
        written: number(value("write-pad")?)?,
        read: number(value("read-pad")?)?,
    })
}

/// `CC=NUM,…`: whatever the country.
fn all_countries(text: &str) -> Option<u64> {
    let entries = text.split(',').filter(|_| !text.is_empty());
    let counts = entries.map(|entry| number::<u64>(entry.split_once('=')?.1));
    counts
        .into_iter()
        .try_fold(0_u64, |all, count| all.checked_add(count?))
}

fn obfuscated(text: &str) -> Option<Obfuscated> {
    let mut words = text.split(' ');
    let value = signed(words.next()?)?;
    let (mut delta_f, mut epsilon, mut bin_size) = (None, None, None);
    for (key, said) in words.filter_map(|word| word.split_once('=')) {
        match key {
            "delta_f" => delta_f = number(said),
            "epsilon" => epsilon = said.parse().ok(),
            "bin_size" => bin_size = number(said),
            _ => {}
        }
    }
    let noise = Noise {
        delta_f: delta_f?,
        epsilon: epsilon?,
        bin_size: bin_size?,
    };
    Some(Obfuscated { value, noise })
}

fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(digits) => number::<i64>(digits)?.checked_neg(),
        None => number(text),
    }
}

fn noises(text: &str) -> Option<Vec<(String, Noise)>> {
    let entry = |entry: &str| {
        let (keyword, said) = entry.split_once('=')?;
        let mut said = said.split('/');
        let noise = Noise {
            delta_f: number(said.next()?)?,
            epsilon: said.next()?.parse().ok()?,
            bin_size: number(said.next()?)?,
        };
        let fits = !keyword.is_empty() && said.next().is_none();
        fits.then(|| (keyword.to_owned(), noise))
    };
    let entries = text.split(' ').take(ENTRIES);
    entries.map(entry).collect()
}

fn ports(figures: &ByPort) -> String {
    let entries = figures.iter().map(|(port, value)| match port {
        Some(port) => format!("{port}={value}"),
        None => format!("other={value}"),
    });
    entries.collect::<Vec<_>>().join(",")
}

impl Noise {
    fn short(&self) -> String {
        format!("{}/{}/{}", self.delta_f, self.epsilon, self.bin_size)
    }

    /// The scale of the Laplace distribution, rounded up: the standard deviation is by the root of two more.
    pub fn scale(&self) -> u64 {
        let hundredfold = self.delta_f.saturating_mul(100);
        hundredfold.div_ceil(u64::from(self.epsilon.get()))
    }
}

impl fmt::Display for Epsilon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// The text is no budget in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEpsilon;

impl FromStr for Epsilon {
    type Err = NoEpsilon;

    fn from_str(text: &str) -> Result<Self, NoEpsilon> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let part: u32 = match part.len() {
            1 => number::<u32>(part).map(|tenths| tenths * 10),
            2 => number(part),
            _ => None,
        }
        .ok_or(NoEpsilon)?;
        let whole: u32 = number(whole).ok_or(NoEpsilon)?;
        let all = whole.checked_mul(100).and_then(|all| all.checked_add(part));
        all.and_then(Self::hundredths).ok_or(NoEpsilon)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} s)", date(self.end), self.length)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<_> = self.bytes.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", self.last, bytes.join(","))
    }
}

impl fmt::Display for Directions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            below,
            read,
            written,
            both,
        } = self;
        write!(f, "{below},{read},{written},{both}")
    }
}

impl fmt::Display for Obfuscated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, noise) = (self.value, self.noise);
        write!(
            f,
            "{value} delta_f={} epsilon={} bin_size={}",
            noise.delta_f, noise.epsilon, noise.bin_size
        )
    }
}

impl fmt::Display for PaddingStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interval,
            bin_size,
            written,
            read,
        } = self;
        write!(
            f,
            "{interval} bin-size={bin_size} write-pad={written} read-pad={read}"
        )
    }
}

impl fmt::Debug for ExtraInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExtraInfo(hidden)")
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;
    use crate::tor::server_descriptor::{put_ed25519_signature, put_rsa_signature};

    fn intervals() -> impl Strategy<Value = Interval> {
        (0..7_000_000_000_u64, 1..=u64::MAX).prop_map(|(end, length)| Interval { end, length })
    }

    fn histories() -> impl Strategy<Value = History> {
        let values = vec(any::<u64>(), 0..ENTRIES);
        (intervals(), values).prop_map(|(last, bytes)| History { last, bytes })
    }

    fn noises() -> impl Strategy<Value = Noise> {
        (any::<u64>(), 1..=u32::MAX, any::<u64>()).prop_map(|(delta_f, epsilon, bin_size)| Noise {
            delta_f,
            epsilon: Epsilon(epsilon),
            bin_size,
        })
    }

    fn obfuscated() -> impl Strategy<Value = Obfuscated> {
        (-i64::MAX..=i64::MAX, noises()).prop_map(|(value, noise)| Obfuscated { value, noise })
    }

    fn by_port() -> impl Strategy<Value = ByPort> {
        vec((option::of(1..=u16::MAX), any::<u64>()), 0..8)
    }

    fn exits() -> impl Strategy<Value = ExitStatistics> {
        (intervals(), by_port(), by_port(), by_port()).prop_map(
            |(interval, written, read, streams)| ExitStatistics {
                interval,
                kibibytes_written: written,
                kibibytes_read: read,
                streams,
            },
        )
    }

    fn services() -> impl Strategy<Value = OnionServiceStatistics> {
        let figures = (option::of(obfuscated()), option::of(obfuscated()));
        (intervals(), figures).prop_map(|(interval, (cells, seen))| OnionServiceStatistics {
            interval,
            rendezvous_cells: cells,
            onions_seen: seen,
        })
    }

    fn statistics() -> impl Strategy<Value = Statistics> {
        let histories = (option::of(histories()), option::of(histories()));
        let counts = (
            option::of((intervals(), any::<[u64; 4]>())),
            option::of((intervals(), any::<u64>())),
        );
        let rooms = (option::of(exits()), option::of(services()));
        let rest = (
            option::of((intervals(), any::<u64>())),
            option::of((intervals(), any::<[u64; 3]>())),
            option::of(0..7_000_000_000_u64),
            vec(("[a-z-]{1,20}", noises()), 0..4),
        );
        (histories, counts, rooms, rest).prop_map(
            |((read, written), (used, circuits), (exit, onion_services), rest)| Statistics {
                read,
                written,
                directions: used.map(|(interval, [below, read, written, both])| {
                    (
                        interval,
                        Directions {
                            below,
                            read,
                            written,
                            both,
                        },
                    )
                }),
                circuits,
                exit,
                onion_services,
                directory: rest.0.map(|(interval, consensuses)| DirectoryStatistics {
                    interval,
                    consensuses,
                }),
                padding: rest
                    .1
                    .map(|(interval, [bin_size, written, read])| PaddingStatistics {
                        interval,
                        bin_size,
                        written,
                        read,
                    }),
                descriptors_exhausted: rest.2,
                noise: rest.3,
            },
        )
    }

    fn document(published: u64, statistics: Statistics) -> (ExtraInfo, String) {
        let extra_info = ExtraInfo {
            nickname: "amber".into(),
            rsa_id: [7; 20],
            signing: vec![1, 2, 3],
            published,
            statistics,
        };
        let mut text = extra_info.write();
        put_ed25519_signature(&[5; 64], &mut text);
        put_rsa_signature(&[6; 128], &mut text);
        (extra_info, text)
    }

    #[test]
    fn lines_of_c_tor_are_read_and_others_skipped() {
        let said = Statistics::parse(
            "write-history 2026-11-26 00:00:00 (86400 s) 1024,2048\nipv6-write-history 2026-11-26 00:00:00 (86400 s) 1\n\
             geoip-db-digest 00\ndirreq-v3-reqs us=8,de=16\ndirreq-stats-end 2026-11-26 00:00:00 (86400 s)\n\
             hidserv-v3-stats-end 2026-11-26 00:00:00 (86400 s)\n\
             hidserv-dir-v3-onions-seen -23 delta_f=8 epsilon=0.30 bin_size=8\n\
             padding-counts 2026-11-26 00:00:00 (86400 s) bin-size=10000 write-drop=0 write-pad=10000 write-total=10000 read-pad=20000\n",
        )
        .expect("read");
        assert_eq!(said.written.expect("a history").bytes, [1024, 2048]);
        assert_eq!(said.directory.map(|told| told.consensuses), Some(24));
        let seen = said.onion_services.and_then(|told| told.onions_seen);
        let seen = seen.expect("a figure");
        assert_eq!((seen.value, seen.noise.scale()), (-23, 27));
        assert_eq!(
            said.padding.map(|told| (told.written, told.read)),
            Some((10_000, 20_000))
        );
    }

    #[test]
    fn what_is_said_twice_or_half_is_refused() {
        let line = "conn-bi-direct 2026-11-26 00:00:00 (86400 s) 1,2,3,4\n";
        assert!(Statistics::parse(line).is_ok());
        assert!(Statistics::parse(&line.repeat(2)).is_err());
        for bad in [
            "conn-bi-direct 2026-11-26 00:00:00 (86400 s) 1,2,3\n",
            "conn-bi-direct 2026-11-26 00:00:00 (0 s) 1,2,3,4\n",
            "exit-stats-end 2026-11-26 00:00:00 (86400 s)\n",
            "exit-kibibytes-read 80=1\n",
            "hidserv-dir-v3-onions-seen 8 delta_f=8 epsilon=0 bin_size=8\n",
            "hoplite-noise conn-bi-direct=1/0.3\n",
            "write-history 2026-11-26 00:00:00 (86400 s) 1,-2\n",
        ] {
            assert!(Statistics::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_many_documents_a_broken_one_takes_no_other_with_it() {
        let (_, good) = document(1_795_737_600, Statistics::default());
        let bad = good.replace("published 2026", "published 202x");
        let text = [good.as_str(), &bad, &good].concat();
        let read: Vec<_> = Told::parse_all(&text).map(|told| told.is_ok()).collect();
        assert_eq!(read, [true, false, true]);
        assert_eq!(Told::parse_all("nothing").count(), 0);
    }

    proptest! {
        #[test]
        fn what_is_told_is_read_again(published in 0..7_000_000_000_u64, statistics in statistics()) {
            let mut lines = String::new();
            statistics.write(&mut lines);
            prop_assert_eq!(Statistics::parse(&lines), Ok(statistics.clone()));
            let (written, text) = document(published, statistics);
            let told = Told::parse(&text).expect("read");
            prop_assert!(told.statistics == written.statistics && told.published == written.published && told.rsa_id == written.rsa_id);
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(extra-info a [0-9A-F]{40}\n)?([a-z0-9-]{1,16}( [ -~]{0,30})?\n){0,20}") {
            drop(Statistics::parse(&text));
            Told::parse_all(&text).for_each(drop);
        }
    }
}
