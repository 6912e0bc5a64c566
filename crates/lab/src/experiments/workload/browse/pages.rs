//! Pages as the Web has them, drawn from a seed: which objects of which size, from which hosts, over which version of HTTP, and who asks for whom.
//!
//! The figures are those of the HTTP Archive's crawl as the Web Almanac 2024 tells them (almanac.httparchive.org/en/2024, chapters "Page Weight",
//! "Third Parties", "HTTP"), of home pages as a desktop's browser gets them where they are told apart; the share of third parties in all requests is that of
//! the edition of 2022. What nobody publishes is assumed, and each constant says so. `docs/scenarios.md` has the table.
//!
//! A page has one rank in all distributions: a page of many requests is also one of many bytes. Ranks of a set are spread evenly (a Kronecker
//! sequence), so that ten pages have the quartiles of the Web as well as a hundred.
//!
//! All is in an object's address, `https://HOST/SEED/PAGE/OBJECT`: a server needs to know nothing beforehand.

use std::fmt::Write as _;

use hoplite_workload::{
    splitmix::{SplitMix, unit},
    web::{PIECE, Payload},
};

/// What the names of all hosts end with.
pub const ZONE: &str = "pages.test";

/// More pages than a set has.
pub const MOST_PAGES: u32 = 10_000;

/// The 10th, 25th, 50th, 75th and 90th percentile.
type Percentiles = [f64; 5];

const RANKS: Percentiles = [0.1, 0.25, 0.5, 0.75, 0.9];

/// "Distribution of requests by homepages", desktop.
const REQUESTS: Percentiles = [23.0, 43.0, 74.0, 120.0, 182.0];

/// Of a page in KB: "Distribution of image response sizes", desktop.
const IMAGES: Percentiles = [84.0, 322.0, 1054.0, 2822.0, 6526.0];

/// "Distribution of JavaScript response sizes by page type", home pages.
const SCRIPTS: Percentiles = [86.0, 248.0, 585.0, 1151.0, 1822.0];

/// "Distribution of CSS response sizes by page type", home pages.
const STYLESHEETS: Percentiles = [7.0, 32.0, 76.0, 149.0, 266.0];

/// "Median homepage weight by content type", desktop; other percentiles are not told: in proportion to the requests.
const DOCUMENT: f64 = 18.0;
const FONTS: f64 = 131.0;

/// "Number of requests by content type", the median home page: of its 72 requests, the document apart.
const SHARES: [(ObjectKind, f64); 5] = [
    (ObjectKind::Image, 20.0 / 71.0),
    (ObjectKind::Script, 23.0 / 71.0),
    (ObjectKind::Stylesheet, 7.0 / 71.0),
    (ObjectKind::Font, 4.0 / 71.0),
    (ObjectKind::Frame, 1.0 / 71.0),
];

/// What is left are beacons and data, whose sizes are not told. An assumption: exponential, with this mean in KB.
const OTHERS: f64 = 2.0;

/// "Third-party requests account for 45 % of all requests" (2022).
const THIRD_PARTY: f64 = 0.45;

/// "The median number of third parties per web page" is 22, of 72 requests; in proportion to them.
const THIRD_PARTIES: f64 = 22.0 / 72.0;

/// Home pages over HTTP/1.1: 22 %. Those that announce HTTP/3 by `alt-svc`: 26 %.
const OWN: Protocols = Protocols {
    http1: 0.22,
    http3: 0.26,
};

/// All requests over HTTP/1.1 are 15 %, which leaves 6 % to third parties. How many of them announce HTTP/3 is not told: as home pages.
const FOREIGN: Protocols = Protocols {
    http1: 0.06,
    http3: 0.26,
};

/// How sizes of one kind differ within a page is not told. An assumption: lognormally, with this deviation.
const SPREAD: f64 = 1.2;

/// Beyond these ranks nothing is told.
const TAIL: f64 = 0.03;

/// No object is smaller, in bytes.
const SMALLEST: u64 = 100;

/// The golden ratio's fraction: multiples of it are spread evenly over 0..1.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

struct Protocols {
    http1: f64,
    http3: f64,
}

/// The newest version of HTTP that a host speaks; it speaks the older ones too, but that only one that says `Http1` has nothing newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3, announced by `alt-svc`.
    Http3,
}

impl Protocol {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Http1, "h1"),
        (Self::Http2, "h2"),
        (Self::Http3, "h3"),
    ];

    fn word(self) -> &'static str {
        let word = Self::ALL.iter().find(|(protocol, _)| *protocol == self);
        word.map_or("", |(_, word)| word)
    }

    /// The domain of all hosts that speak it.
    #[must_use]
    pub fn zone(self) -> String {
        format!("{}.{ZONE}", self.word())
    }

    /// That of the host with this name; `None` if no page has it.
    #[must_use]
    pub fn of_host(name: &str) -> Option<Self> {
        let labels = name.strip_suffix(ZONE)?.strip_suffix('.')?;
        let (host, word) = labels.split_once('.')?;
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let fits = !host.is_empty() && host.len() < 64 && host.chars().all(known);
        let protocol = Self::ALL.iter().find(|(_, known)| *known == word)?;
        fits.then_some(protocol.0)
    }
}

/// What an object is to a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// The page itself.
    Document,
    /// A document within it.
    Frame,
    /// CSS: nothing is drawn without it.
    Stylesheet,
    /// JavaScript.
    Script,
    /// An image.
    Image,
    /// A font, which a stylesheet asks for.
    Font,
    /// A beacon or data, which a script asks for.
    Other,
}

impl ObjectKind {
    fn content_type(self) -> &'static str {
        match self {
            Self::Document | Self::Frame => "text/html; charset=utf-8",
            Self::Stylesheet => "text/css",
            Self::Script => "text/javascript",
            Self::Image => "image/gif",
            Self::Font => "font/woff2",
            Self::Other => "application/octet-stream",
        }
    }
}

/// An object of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Which of the page's hosts has it.
    pub host: usize,
    /// Its size as it is sent; one whose references need more has those.
    pub bytes: u64,
    /// Which object asks for it; the document's own is 0.
    pub parent: usize,
}

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    seed: u64,
    number: u32,
    /// Names of its hosts: its own two, then third parties.
    pub hosts: Vec<String>,
    /// The document first.
    pub objects: Vec<Object>,
}

/// How many of the hosts are the page's own.
const OWN_HOSTS: usize = 2;

impl Page {
    /// The page of this number, from 1, of the set of this seed.
    #[must_use]
    pub fn draw(seed: u64, number: u32) -> Self {
        let mut random = Random::of(seed, number);
        let rank = rank(seed, number);
        let requests = whole(at(&REQUESTS, rank)).max(2);
        let mut kinds = kinds(requests - 1);
        random.shuffle(&mut kinds);
        let foreign = foreign(&kinds);
        let third = third_parties(requests, foreign.iter().filter(|foreign| **foreign).count());
        let hosts = hosts(number, third, &mut random);
        let mut objects = vec![Object {
            kind: ObjectKind::Document,
            host: 0,
            bytes: 0,
            parent: 0,
        }];
        let mut visited = 0;
        for (kind, foreign) in kinds.into_iter().zip(foreign) {
            let host = if foreign {
                visited += 1;
                OWN_HOSTS + visited % third.max(1)
            } else {
                usize::from(random.share() < 0.5)
            };
            objects.push(Object {
                kind,
                host,
                bytes: 0,
                parent: 0,
            });
        }
        let mut page = Self {
            seed,
            number,
            hosts,
            objects,
        };
        page.relate(&mut random);
        page.weigh(rank, &mut random);
        page
    }

    /// What a path asks for: a set's seed, a page, an object. `None` if it is no such path.
    #[must_use]
    pub fn asked(path: &str) -> Option<(u64, u32, usize)> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let seed = parts.next()?.parse().ok()?;
        let number = parts.next()?.parse().ok()?;
        let object = parts.next()?.parse().ok()?;
        let fits = parts.next().is_none() && (1..=MOST_PAGES).contains(&number);
        fits.then_some((seed, number, object))
    }

    /// Where an object is.
    #[must_use]
    pub fn url(&self, object: usize) -> String {
        let host = self
            .objects
            .get(object)
            .and_then(|of| self.hosts.get(of.host));
        let host = host.map_or(ZONE, String::as_str);
        format!("https://{host}/{}/{}/{object}", self.seed, self.number)
    }

    /// Bytes of all objects as they are sent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (0..self.objects.len())
            .map(|object| self.size(object))
            .sum()
    }

    /// Bytes of an object as it is sent.
    #[must_use]
    pub fn size(&self, object: usize) -> u64 {
        let Some(of) = self.objects.get(object) else {
            return 0;
        };
        let around = self.around(object);
        of.bytes
            .max((around.before.len() + around.after.len()) as u64)
    }

    /// Its media type and what is in it.
    #[must_use]
    pub fn body(&self, object: usize) -> Option<(&'static str, Vec<u8>)> {
        let of = self.objects.get(object)?;
        let around = self.around(object);
        let size = usize::try_from(self.size(object)).ok()?;
        let mut body = Vec::with_capacity(size);
        body.extend_from_slice(&around.before);
        let until = size.saturating_sub(around.after.len());
        let seed = self.seed ^ (u64::from(self.number) << 32) ^ object as u64;
        let mut payload = Payload::new(seed);
        while body.len() < until {
            let begin = body.len();
            body.resize(until.min(begin + PIECE), 0);
            payload.fill(&mut body[begin..]);
            if around.text {
                let letter = |byte: &mut u8| *byte = LETTERS[usize::from(*byte & 63)];
                body[begin..].iter_mut().for_each(letter);
            }
        }
        body.extend_from_slice(around.after.as_bytes());
        Some((of.kind.content_type(), body))
    }

    /// A font belongs to a stylesheet and is where that is; what a third party has, its first script asks for.
    fn relate(&mut self, random: &mut Random) {
        let of = |kind: ObjectKind, objects: &[Object]| -> Vec<usize> {
            let numbered = objects.iter().enumerate();
            let same = numbered.filter(|(_, object)| object.kind == kind);
            same.map(|(number, _)| number).collect()
        };
        let sheets = of(ObjectKind::Stylesheet, &self.objects);
        for font in of(ObjectKind::Font, &self.objects) {
            let sheet = random.one_of(&sheets).unwrap_or(0);
            let host = self.objects[sheet].host;
            self.objects[font].parent = sheet;
            self.objects[font].host = host;
        }
        let scripts = of(ObjectKind::Script, &self.objects);
        for host in OWN_HOSTS..self.hosts.len() {
            let here = |number: &&usize| self.objects[**number].host == host;
            let Some(tag) = scripts.iter().find(here).copied() else {
                continue;
            };
            for (number, object) in self.objects.iter_mut().enumerate() {
                let asked = matches!(
                    object.kind,
                    ObjectKind::Script | ObjectKind::Image | ObjectKind::Other | ObjectKind::Frame
                );
                if asked && object.host == host && number != tag {
                    object.parent = tag;
                }
            }
        }
    }

    fn weigh(&mut self, rank: f64, random: &mut Random) {
        let size = at(&REQUESTS, rank) / REQUESTS[2];
        let totals = [
            (ObjectKind::Document, DOCUMENT * size),
            (ObjectKind::Image, at(&IMAGES, rank)),
            (ObjectKind::Script, at(&SCRIPTS, rank)),
            (ObjectKind::Stylesheet, at(&STYLESHEETS, rank)),
            (ObjectKind::Font, FONTS * size),
        ];
        for (kind, total) in totals {
            let same = |object: &&mut Object| object.kind == kind;
            let objects: Vec<&mut Object> = self.objects.iter_mut().filter(same).collect();
            let weights: Vec<f64> = objects
                .iter()
                .map(|_| (SPREAD * random.normal()).exp())
                .collect();
            let sum: f64 = weights.iter().sum();
            for (object, weight) in objects.into_iter().zip(weights) {
                object.bytes = bytes(total * weight / sum);
            }
        }
        for object in &mut self.objects {
            match object.kind {
                ObjectKind::Other => object.bytes = bytes(OTHERS * random.exponential()),
                ObjectKind::Frame => object.bytes = bytes(DOCUMENT * random.exponential()),
                _ => {}
            }
        }
    }
}

/// What stands before and behind an object's filling.
struct Around {
    before: Vec<u8>,
    after: &'static str,
    /// Whether the filling are letters, which end no comment.
    text: bool,
}

/// What filling is written with where it has to be text.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789. ";

/// An image of one pixel. What is behind its end nobody looks at.
const GIF: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x01D\x00;";

impl Page {
    fn around(&self, object: usize) -> Around {
        let kind = self.objects.get(object).map(|object| object.kind);
        let (before, after) = match kind {
            Some(ObjectKind::Document) => (self.document(), "--></body></html>\n"),
            Some(ObjectKind::Frame) => (
                "<!doctype html><html><head><title>Frame</title></head><body><!--".to_owned(),
                "--></body></html>\n",
            ),
            Some(ObjectKind::Stylesheet) => (self.font_faces(object) + "/*", "*/\n"),
            Some(ObjectKind::Script) => (self.asks(object) + "/*", "*/\n"),
            Some(ObjectKind::Image) => {
                return Around {
                    before: GIF.to_vec(),
                    after: "",
                    text: false,
                };
            }
            Some(ObjectKind::Font | ObjectKind::Other) | None => {
                return Around {
                    before: Vec::new(),
                    after: "",
                    text: false,
                };
            }
        };
        Around {
            before: before.into_bytes(),
            after,
            text: true,
        }
    }

    /// What an object asks for.
    fn children(&self, parent: usize) -> impl Iterator<Item = (usize, &Object)> {
        let asked =
            move |(number, object): &(usize, &Object)| *number != 0 && object.parent == parent;
        self.objects.iter().enumerate().filter(asked)
    }

    /// HTML up to its filling: stylesheets and third parties' scripts in the head, images, frames, then its own scripts.
    fn document(&self) -> String {
        let mut html = format!(
            "<!doctype html><html lang=en><head><meta charset=utf-8><title>Page {}</title><link rel=icon href=\"data:,\">",
            self.number
        );
        // Writing to a String cannot fail.
        let mut put = |text: std::fmt::Arguments<'_>| html.write_fmt(text).ok();
        for (number, object) in self.children(0) {
            let url = self.url(number);
            match object.kind {
                ObjectKind::Stylesheet => put(format_args!("<link rel=stylesheet href=\"{url}\">")),
                ObjectKind::Script if object.host >= OWN_HOSTS => {
                    put(format_args!("<script async src=\"{url}\"></script>"))
                }
                _ => None,
            };
        }
        put(format_args!(
            "<style>{}</style></head><body>",
            self.font_faces(0)
        ));
        for (number, object) in self.objects.iter().enumerate() {
            let url = self.url(number);
            match object.kind {
                ObjectKind::Font => put(format_args!(
                    "<p style=\"font-family:f{number},serif\">Text</p>"
                )),
                ObjectKind::Image if object.parent == 0 => put(format_args!(
                    "<img src=\"{url}\" alt=\"\" width=8 height=8>"
                )),
                ObjectKind::Frame if object.parent == 0 => put(format_args!(
                    "<iframe src=\"{url}\" width=8 height=8></iframe>"
                )),
                _ => None,
            };
        }
        for (number, object) in self.children(0) {
            if object.kind == ObjectKind::Script && object.host < OWN_HOSTS {
                put(format_args!(
                    "<script src=\"{}\"></script>",
                    self.url(number)
                ));
            }
        }
        let data = self
            .children(0)
            .filter(|(_, object)| object.kind == ObjectKind::Other);
        for (number, _) in data {
            put(format_args!(
                "<script>fetch(\"{}\",{{mode:\"no-cors\"}})</script>",
                self.url(number)
            ));
        }
        put(format_args!("<!--"));
        html
    }

    fn font_faces(&self, parent: usize) -> String {
        let fonts = self
            .children(parent)
            .filter(|(_, object)| object.kind == ObjectKind::Font);
        let face = |(number, _)| {
            let url = self.url(number);
            format!("@font-face{{font-family:f{number};src:url(\"{url}\") format(\"woff2\")}}")
        };
        fonts.map(face).collect()
    }

    /// JavaScript that asks for a script's children.
    fn asks(&self, parent: usize) -> String {
        let ask = |(number, object): (usize, &Object)| {
            let url = self.url(number);
            match object.kind {
                ObjectKind::Other => format!("fetch(\"{url}\",{{mode:\"no-cors\"}});"),
                ObjectKind::Script => element("script", &url),
                ObjectKind::Frame => element("iframe", &url),
                _ => element("img", &url),
            }
        };
        self.children(parent).map(ask).collect()
    }
}

fn element(tag: &str, url: &str) -> String {
    format!(
        "{{const e=document.createElement(\"{tag}\");e.src=\"{url}\";document.documentElement.append(e)}}"
    )
}

/// A page's place among all pages, 0..1.
fn rank(seed: u64, number: u32) -> f64 {
    let begin = unit(SplitMix::new(seed).bits());
    let rank = (begin + f64::from(number) * GOLDEN).fract();
    rank.clamp(TAIL, 1.0 - TAIL)
}

/// What a distribution has at a rank: between percentiles, and a little beyond them, its logarithm is a line.
fn at(percentiles: &Percentiles, rank: f64) -> f64 {
    let last = RANKS.len() - 2;
    let segment = RANKS
        .iter()
        .skip(1)
        .take(last)
        .filter(|edge| rank > **edge)
        .count();
    let (low, high) = (RANKS[segment], RANKS[segment + 1]);
    let (from, to) = (percentiles[segment].ln(), percentiles[segment + 1].ln());
    (from + (to - from) * (rank - low) / (high - low)).exp()
}

/// All objects but the document, by kind.
fn kinds(count: usize) -> Vec<ObjectKind> {
    let mut kinds = Vec::with_capacity(count);
    for (kind, share) in SHARES {
        let wanted = whole(count as f64 * share).min(count - kinds.len());
        kinds.extend(std::iter::repeat_n(kind, wanted));
    }
    kinds.resize(count, ObjectKind::Other);
    kinds
}

/// Which objects third parties have. Fonts are where their stylesheet is.
fn foreign(kinds: &[ObjectKind]) -> Vec<bool> {
    let mut left = whole(kinds.len() as f64 * THIRD_PARTY);
    let mut one = |kind: &ObjectKind| {
        let foreign = left > 0 && *kind != ObjectKind::Font;
        left -= usize::from(foreign);
        foreign
    };
    kinds.iter().map(&mut one).collect()
}

fn third_parties(requests: usize, objects: usize) -> usize {
    whole(requests as f64 * THIRD_PARTIES).min(objects)
}

fn hosts(number: u32, third: usize, random: &mut Random) -> Vec<String> {
    let mut name = |host: String, of: &Protocols| {
        let share = random.share();
        let protocol = match share {
            _ if share < of.http1 => Protocol::Http1,
            _ if share < of.http1 + of.http3 => Protocol::Http3,
            _ => Protocol::Http2,
        };
        format!("{host}.{}.{ZONE}", protocol.word())
    };
    let mut hosts = vec![
        name(format!("www{number}"), &OWN),
        name(format!("static{number}"), &OWN),
    ];
    hosts.extend((1..=third).map(|host| name(format!("t{host}"), &FOREIGN)));
    hosts
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut to the range of the integer: not negative here, and small"
)]
fn whole(number: f64) -> usize {
    number.round() as usize
}

fn bytes(kilobytes: f64) -> u64 {
    (whole(kilobytes * 1024.0) as u64).max(SMALLEST)
}

/// What a page is drawn with.
struct Random(SplitMix);

impl Random {
    fn of(seed: u64, number: u32) -> Self {
        let mut random = SplitMix::new(seed);
        random.absorb("page".bytes());
        random.absorb_number(number.into());
        Self(random)
    }

    fn share(&mut self) -> f64 {
        unit(self.0.bits())
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let place = self.0.below(all.len() as u64);
        all.get(usize::try_from(place).ok()?).copied()
    }

    /// Mean 0, deviation 1: the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    /// Mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.share()).ln()
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, all: &mut [T]) {
        for end in (1..all.len()).rev() {
            let place = self.0.below(end as u64 + 1);
            all.swap(end, usize::try_from(place).unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(count: u32) -> Vec<Page> {
        (1..=count).map(|number| Page::draw(1, number)).collect()
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn kilobytes(page: &Page, kind: ObjectKind) -> f64 {
        let same = page.objects.iter().filter(|object| object.kind == kind);
        same.map(|object| object.bytes as f64 / 1024.0).sum()
    }

    #[test]
    fn the_same_seed_and_number_make_the_same_page_and_others_another() {
        assert_eq!(Page::draw(7, 3), Page::draw(7, 3));
        assert_eq!(Page::draw(7, 3).body(0), Page::draw(7, 3).body(0));
        assert_ne!(Page::draw(7, 3), Page::draw(7, 4));
        assert_ne!(Page::draw(7, 3), Page::draw(8, 3));
    }

    #[test]
    fn a_set_has_the_published_medians() {
        let pages = set(100);
        let near = |of: &dyn Fn(&Page) -> f64, published: f64| {
            let found = median(pages.iter().map(of).collect());
            assert!(
                (found / published - 1.0).abs() < 0.12,
                "{found} for {published}"
            );
        };
        near(&|page| page.objects.len() as f64, REQUESTS[2]);
        near(&|page| kilobytes(page, ObjectKind::Image), IMAGES[2]);
        near(&|page| kilobytes(page, ObjectKind::Script), SCRIPTS[2]);
        near(
            &|page| kilobytes(page, ObjectKind::Stylesheet),
            STYLESHEETS[2],
        );
        near(&|page| kilobytes(page, ObjectKind::Font), FONTS);
        near(&|page| (page.hosts.len() - OWN_HOSTS) as f64, 22.0);
        let foreign = |page: &Page| {
            let foreign = page
                .objects
                .iter()
                .filter(|object| object.host >= OWN_HOSTS);
            foreign.count() as f64 / page.objects.len() as f64
        };
        near(&foreign, THIRD_PARTY);
    }

    #[test]
    fn a_set_has_the_published_tails() {
        let mut counts: Vec<usize> = set(100).iter().map(|page| page.objects.len()).collect();
        counts.sort_unstable();
        let share = |of: f64| counts[whole(of * 100.0)] as f64;
        for (rank, published) in RANKS.into_iter().zip(REQUESTS) {
            assert!(
                (share(rank) / published - 1.0).abs() < 0.15,
                "{} at {rank}",
                share(rank)
            );
        }
    }

    #[test]
    fn ten_pages_are_spread_over_all_ranks() {
        let ranks: BTreeSet<usize> = (1..=10)
            .map(|number| whole(rank(5, number) * 5.0 - 0.5))
            .collect();
        assert_eq!(ranks.len(), 5, "{ranks:?}");
    }

    #[test]
    fn shares_of_protocols_are_the_published_ones() {
        let pages = set(400);
        let share = |third: bool, protocol| {
            let hosts = pages.iter().flat_map(|page| {
                let (own, foreign) = page.hosts.split_at(OWN_HOSTS);
                if third { foreign } else { own }
            });
            let all: Vec<_> = hosts.map(|host| Protocol::of_host(host).unwrap()).collect();
            all.iter().filter(|one| **one == protocol).count() as f64 / all.len() as f64
        };
        for (third, protocol, published) in [
            (false, Protocol::Http1, 0.22),
            (false, Protocol::Http3, 0.26),
            (true, Protocol::Http1, 0.06),
            (true, Protocol::Http3, 0.26),
        ] {
            assert!((share(third, protocol) - published).abs() < 0.05);
        }
    }

    #[test]
    fn everything_is_asked_for_by_something_that_is_asked_for() {
        for page in set(50) {
            for (number, object) in page.objects.iter().enumerate().skip(1) {
                let (asking, mut above, mut steps) = (object.parent, object.parent, 0);
                let (_, body) = page.body(asking).unwrap();
                let body = String::from_utf8(body).unwrap();
                assert!(
                    body.contains(&format!("\"{}\"", page.url(number))),
                    "{number} of {}",
                    page.number
                );
                while above != 0 && steps < 5 {
                    (above, steps) = (page.objects[above].parent, steps + 1);
                }
                assert_eq!(above, 0);
            }
        }
    }

    #[test]
    fn bodies_have_the_size_that_is_told_and_comments_end_where_they_should() {
        for page in set(20) {
            for (number, object) in page.objects.iter().enumerate() {
                let (_, body) = page.body(number).unwrap();
                assert_eq!(body.len() as u64, page.size(number));
                if matches!(object.kind, ObjectKind::Script | ObjectKind::Stylesheet) {
                    let text = String::from_utf8(body).unwrap();
                    assert_eq!(
                        (text.matches("/*").count(), text.matches("*/").count()),
                        (1, 1)
                    );
                }
            }
            let total: u64 = (0..page.objects.len()).map(|one| page.size(one)).sum();
            assert_eq!(total, page.bytes());
        }
    }

    #[test]
    fn names_that_no_page_has_are_nobodys() {
        assert_eq!(
            Protocol::of_host("www1.h1.pages.test"),
            Some(Protocol::Http1)
        );
        assert_eq!(
            Protocol::of_host("t12.h3.pages.test"),
            Some(Protocol::Http3)
        );
        for name in [
            "pages.test",
            "h1.pages.test",
            ".h1.pages.test",
            "a.h4.pages.test",
            "a.b.h1.pages.test",
            "a.h1.pages.test.",
            "a.h1.xpages.test",
            "A.h1.pages.test",
        ] {
            assert_eq!(Protocol::of_host(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn an_objects_path_is_read_as_it_was_written(seed: u64, number in 1..=MOST_PAGES, object in 0_usize..20) {
            let page = Page::draw(seed, number);
            let url = page.url(object);
            let path = url.splitn(4, '/').nth(3).unwrap();
            prop_assert_eq!(Page::asked(&format!("/{path}")), Some((seed, number, object)));
        }

        #[test]
        fn any_path_is_read_without_a_panic(path in "\\PC{0,40}") {
            let _asked = Page::asked(&path);
        }
    }
}
