//! Markup that is safe, and scenes written as SVG and as PNG.
//!
//! SVG is written here and not by plotters' back end, which rounds to whole pixels and knows neither the page's colours as variables (a dark page
//! has others), nor a title that is shown where the pointer is, nor a dash pattern.

use std::{io, path::Path};

use plotters::{
    backend::{BitMapBackend, DrawingBackend},
    style::{
        Color, FontTransform, IntoTextStyle, RGBAColor, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::scene::{Anchor, Dash, Label, Paint, Scene, Shape, font};

/// A text as content or as the value of a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters are no characters of XML.
            other if other.is_control() && !matches!(other, '\n' | '\t') => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// `<TAG>inner</TAG>`; `head` is the tag with its attributes, which the program itself wrote.
pub(super) fn tag(head: &str, inner: &str) -> String {
    let name = head.split_whitespace().next().unwrap_or(head);
    format!("<{head}>{inner}</{name}>")
}

/// `<TAG>text</TAG>` around text that anybody wrote.
pub(super) fn text_tag(head: &str, text: &str) -> String {
    tag(head, &escape(text))
}

/// A row of a table's head or body.
pub(super) fn row(cells: &[String]) -> String {
    tag("tr", &cells.concat())
}

/// What the drawing is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// In the page.
    Page,
    /// A file of its own.
    File,
}

/// The drawing.
pub(super) fn svg(scene: &Scene, target: Target) -> String {
    let (width, height) = (scene.width, scene.height);
    let head = match target {
        Target::Page => format!(
            "<svg viewBox=\"0 {:.0} {width:.0} {:.0}\" style=\"max-width:{width:.0}px\" role=\"img\">",
            scene.head,
            height - scene.head
        ),
        Target::File => format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" font-family=\"DejaVu Sans, Verdana, sans-serif\">"
        ),
    };
    let background = match target {
        Target::Page => "",
        Target::File => "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
    };
    let title = scene.titled().filter(|_| target == Target::File);
    let shapes = title.iter().chain(&scene.shapes);
    let shapes: String = shapes.map(|shape| element(shape, target)).collect();
    format!(
        "{head}{}{background}{shapes}</svg>",
        text_tag("title", &scene.title)
    )
}

fn css(paint: Paint, target: Target) -> String {
    match target {
        Target::Page => format!("var(--{})", paint.variable()),
        Target::File => paint.light().to_owned(),
    }
}

fn element(shape: &Shape, target: Target) -> String {
    match shape {
        Shape::Line {
            points,
            paint,
            width,
            dash,
        } => {
            let pattern: Vec<String> = dash.pattern().iter().map(f64::to_string).collect();
            let dashes = if pattern.is_empty() {
                String::new()
            } else {
                format!(";stroke-dasharray:{}", pattern.join(" "))
            };
            let (path, colour) = (path(points), css(*paint, target));
            format!(
                "<path d=\"{path}\" style=\"fill:none;stroke:{colour};stroke-width:{width}{dashes};stroke-linejoin:round\"/>"
            )
        }
        Shape::Area {
            points,
            paint,
            opacity,
            hint,
        } => {
            let (path, fill, hint) = (path(points), css(*paint, target), title(hint));
            format!(
                "<path d=\"{path}Z\" style=\"fill:{fill};fill-opacity:{opacity}\">{hint}</path>"
            )
        }
        Shape::Dot {
            at: (x, y),
            radius,
            paint,
            opacity,
            hint,
        } => {
            let (fill, edge, hint) = (css(*paint, target), css(Paint::Paper, target), title(hint));
            format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" style=\"fill:{fill};fill-opacity:{opacity};stroke:{edge};stroke-width:.7\">{hint}</circle>"
            )
        }
        Shape::Text(label) => text_element(label, target),
    }
}

fn text_element(label: &Label, target: Target) -> String {
    let ((x, y), size) = (label.at, label.size);
    let anchor = match label.anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let weight = if label.bold { ";font-weight:600" } else { "" };
    let turn = if label.upright {
        format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")
    } else {
        String::new()
    };
    let (fill, text) = (css(label.paint, target), escape(&label.text));
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\"{turn} text-anchor=\"{anchor}\" style=\"font-size:{size}px;fill:{fill}{weight}\">{text}</text>"
    )
}

fn title(hint: &str) -> String {
    if hint.is_empty() {
        return String::new();
    }
    text_tag("title", hint)
}

fn path(points: &[(f64, f64)]) -> String {
    let letters = std::iter::once('M').chain(std::iter::repeat('L'));
    let points = letters.zip(points);
    points
        .map(|(letter, (x, y))| format!("{letter}{x:.1} {y:.1}"))
        .collect()
}

// PNG, for slides and papers: drawn four times as large by plotters, then averaged to twice the size, which makes edges smooth.

/// Drawn so much larger than the scene.
const DRAWN: f64 = 4.0;

/// Drawn pixels for each pixel of the file, along a side.
const AVERAGED: u32 = 2;

/// The largest side of a scene in pixels that is drawn: memory has an end.
const LARGEST: f64 = 3_000.0;

type Backend<'a> = BitMapBackend<'a>;

/// Writes a scene to a file.
///
/// # Errors
/// What the file system says, or that the scene is too large.
pub(super) fn png(scene: &Scene, path: &Path) -> io::Result<()> {
    let side = |length: f64| pixels(length.clamp(1.0, LARGEST).round() * DRAWN);
    let (width, height) = (side(scene.width), side(scene.height));
    let mut large = vec![255; 3 * width as usize * height as usize];
    {
        let mut canvas = Canvas(Backend::with_buffer(&mut large, (width, height)));
        let title = scene.titled();
        for shape in title.iter().chain(&scene.shapes) {
            canvas.draw(shape)?;
        }
        canvas.0.present().map_err(io::Error::other)?;
    }
    let (width, height) = (width / AVERAGED, height / AVERAGED);
    let small = average(&large, width, height);
    let mut file = Backend::new(path, (width, height));
    file.blit_bitmap((0, 0), (width, height), &small)
        .and_then(|()| file.present())
        .map_err(io::Error::other)
}

/// Averages squares of drawn pixels to one.
fn average(large: &[u8], width: u32, height: u32) -> Vec<u8> {
    let stride = (width * AVERAGED) as usize * 3;
    let mut small = Vec::with_capacity(3 * width as usize * height as usize);
    for rows in large.chunks_exact(stride * AVERAGED as usize) {
        let (upper, lower) = rows.split_at(stride);
        for (upper, lower) in upper.chunks_exact(6).zip(lower.chunks_exact(6)) {
            let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (upper, lower) else {
                continue;
            };
            small.extend([mean(a, d, g, j), mean(b, e, h, k), mean(c, f, i, l)]);
        }
    }
    small
}

#[expect(clippy::cast_possible_truncation, reason = "a mean of bytes is a byte")]
fn mean(one: &u8, two: &u8, three: &u8, four: &u8) -> u8 {
    ((u16::from(*one) + u16::from(*two) + u16::from(*three) + u16::from(*four) + 2) / 4) as u8
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut to the range of the integer"
)]
fn pixels(length: f64) -> u32 {
    length.round() as u32
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float is cut to the range of the integer"
)]
fn place((x, y): (f64, f64)) -> (i32, i32) {
    ((x * DRAWN).round() as i32, (y * DRAWN).round() as i32)
}

fn rgba(paint: Paint, opacity: f64) -> RGBAColor {
    let text = paint.light();
    let part = |from: usize| {
        let part = text.get(from..from + 2).unwrap_or("00");
        u8::from_str_radix(part, 16).unwrap_or_default()
    };
    RGBColor(part(1), part(3), part(5)).mix(opacity)
}

/// What is drawn on, in the scene's lengths.
struct Canvas<'a>(Backend<'a>);

impl Canvas<'_> {
    fn draw(&mut self, shape: &Shape) -> io::Result<()> {
        match shape {
            Shape::Line {
                points,
                paint,
                width,
                dash,
            } => self.line(points, &stroke(*paint, *width), *dash),
            Shape::Area {
                points,
                paint,
                opacity,
                ..
            } => self.area(points, rgba(*paint, *opacity)),
            Shape::Dot {
                at,
                radius,
                paint,
                opacity,
                ..
            } => {
                self.disc(*at, radius + 0.5, rgba(Paint::Paper, *opacity))?;
                self.disc(*at, *radius, rgba(*paint, *opacity))
            }
            Shape::Text(label) => {
                let paint = rgba(label.paint, 1.0);
                let style = text_style(label.size, label.bold, label.upright).color(&paint);
                let style = style.pos(position(label.anchor));
                let at = place(middle_of_text(label.at, label.size, label.upright));
                let drawn = self.0.draw_text(&label.text, &style, at);
                drawn.map_err(io::Error::other)
            }
        }
    }

    fn line(&mut self, points: &[(f64, f64)], style: &ShapeStyle, dash: Dash) -> io::Result<()> {
        for piece in pieces(points, dash) {
            let path = piece.into_iter().map(place);
            self.0.draw_path(path, style).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn area(&mut self, points: &[(f64, f64)], colour: RGBAColor) -> io::Result<()> {
        let points = points.iter().copied().map(place);
        let drawn = self.0.fill_polygon(points, &colour.filled());
        drawn.map_err(io::Error::other)
    }

    fn disc(&mut self, at: (f64, f64), radius: f64, colour: RGBAColor) -> io::Result<()> {
        let radius = pixels(radius * DRAWN);
        let drawn = self
            .0
            .draw_circle(place(at), radius, &colour.filled(), true);
        drawn.map_err(io::Error::other)
    }
}

/// The middle of a text's box, which is its place for plotters; ours is on the baseline.
fn middle_of_text((x, y): (f64, f64), size: f64, upright: bool) -> (f64, f64) {
    let raise = size * 0.27;
    if upright {
        (x - raise, y)
    } else {
        (x, y - raise)
    }
}

fn stroke(paint: Paint, width: f64) -> ShapeStyle {
    rgba(paint, 1.0).stroke_width(pixels(width * DRAWN).max(1))
}

fn text_style(size: f64, bold: bool, upright: bool) -> TextStyle<'static> {
    let font = font(size * DRAWN, bold);
    let font = if upright {
        font.transform(FontTransform::Rotate270)
    } else {
        font
    };
    // The area's size only matters for relative sizes.
    font.into_text_style(&(1000, 1000))
}

fn position(anchor: Anchor) -> Pos {
    let across = match anchor {
        Anchor::Start => HPos::Left,
        Anchor::Middle => HPos::Center,
        Anchor::End => HPos::Right,
    };
    Pos::new(across, VPos::Center)
}

/// A line cut into its strokes.
fn pieces(points: &[(f64, f64)], dash: Dash) -> Vec<Vec<(f64, f64)>> {
    let pattern = dash.pattern();
    if pattern.is_empty() {
        return vec![points.to_vec()];
    }
    let mut pieces = Vec::new();
    let mut piece: Vec<(f64, f64)> = points.first().copied().into_iter().collect();
    let (mut turn, mut left) = (0, pattern.first().copied().unwrap_or(1.0));
    for pair in points.windows(2) {
        let &[mut from, to] = pair else { continue };
        loop {
            let length = (to.0 - from.0).hypot(to.1 - from.1);
            if length < left || !length.is_finite() {
                left -= length;
                piece.push(to);
                break;
            }
            let part = left / length;
            from = (
                from.0 + (to.0 - from.0) * part,
                from.1 + (to.1 - from.1) * part,
            );
            piece.push(from);
            if turn % 2 == 0 {
                pieces.push(std::mem::take(&mut piece));
            }
            piece = vec![from];
            turn += 1;
            left = pattern
                .get(turn % pattern.len())
                .copied()
                .unwrap_or(1.0)
                .max(0.1);
        }
    }
    if turn % 2 == 0 && piece.len() > 1 {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_files_cannot_leave_its_place() {
        let mut scene = Scene::new(100.0, 20.0, "</title><script>");
        scene.text((1.0, 2.0), "<b>&\"'", 10.0, Paint::Ink, Anchor::Start);
        scene.dot((1.0, 2.0), (2.0, 1.0), Paint::Series(0), "<i>");
        let svg = svg(&scene, Target::Page);
        assert!(
            !svg.contains("<script") && !svg.contains("<b>") && !svg.contains("<i>"),
            "{svg}"
        );
        assert!(svg.contains("&lt;b&gt;&amp;&quot;&#39;"), "{svg}");
    }

    #[test]
    fn a_file_stands_alone_and_a_drawing_of_the_page_takes_its_colours() {
        let mut scene = Scene::new(100.0, 20.0, "a line");
        scene.line(
            &[(0.0, 0.0), (9.0, 9.0)],
            Paint::Series(1),
            2.0,
            Dash::Dashed,
        );
        let file = svg(&scene, Target::File);
        assert!(file.contains("xmlns=") && file.contains("#d55e00") && !file.contains("var("));
        assert!(svg(&scene, Target::Page).contains("var(--s1)"));
    }

    #[test]
    fn a_dashed_line_has_strokes_and_gaps() {
        let pieces = pieces(&[(0.0, 0.0), (20.0, 0.0)], Dash::Dashed);
        let ends: Vec<(f64, f64)> = pieces
            .iter()
            .map(|piece| (piece[0].0, piece[piece.len() - 1].0))
            .collect();
        assert_eq!(ends, [(0.0, 7.0), (11.0, 18.0)]);
    }

    #[test]
    fn a_png_is_twice_the_scene_and_shows_its_shapes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figure.png");
        let mut scene = Scene::new(120.0, 0.0, "");
        scene.height = 40.0;
        scene.area(
            &[(0.0, 0.0), (60.0, 0.0), (60.0, 40.0), (0.0, 40.0)],
            Paint::Series(0),
            1.0,
            "",
        );
        scene.text((70.0, 25.0), "text", 12.0, Paint::Ink, Anchor::Start);
        png(&scene, &path).unwrap();
        let file = std::fs::read(&path).unwrap();
        assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
        let side = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((side(16), side(20)), (240, 80));
    }

    #[test]
    fn nothing_that_a_browser_would_act_on_is_left() {
        let safe = escape("<a href='x' title=\"y\">&\u{0}</a>");
        assert_eq!(
            safe,
            "&lt;a href=&#39;x&#39; title=&quot;y&quot;&gt;&amp;\u{fffd}&lt;/a&gt;"
        );
    }

    #[test]
    fn a_tag_is_closed_by_its_name() {
        assert_eq!(
            text_tag("td class=\"n\"", "1 < 2"),
            "<td class=\"n\">1 &lt; 2</td>"
        );
    }
}
