//! A scene as PNG, for slides and papers: drawn four times as large by plotters, then averaged to twice the size, which makes edges smooth.

use std::{io, path::Path};

use plotters::{
    backend::{BitMapBackend, DrawingBackend},
    style::{
        Color, FontTransform, IntoTextStyle, RGBAColor, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::scene::{Anchor, Dash, Paint, Scene, Shape, font};

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
pub(super) fn write(scene: &Scene, path: &Path) -> io::Result<()> {
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

#[expect(
    clippy::cast_possible_truncation,
    reason = "a mean of octets is an octet"
)]
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

fn colour(paint: Paint, opacity: f64) -> RGBAColor {
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
            } => self.area(points, colour(*paint, *opacity)),
            Shape::Dot {
                at,
                radius,
                paint,
                opacity,
                ..
            } => {
                self.disc(*at, radius + 0.5, colour(Paint::Paper, *opacity))?;
                self.disc(*at, *radius, colour(*paint, *opacity))
            }
            Shape::Text {
                at,
                text,
                size,
                paint,
                anchor,
                bold,
                upright,
            } => {
                let paint = colour(*paint, 1.0);
                let style = text_style(*size, *bold, *upright).color(&paint);
                let style = style.pos(position(*anchor));
                let at = place(middle_of_text(*at, *size, *upright));
                let drawn = self.0.draw_text(text, &style, at);
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
    match upright {
        true => (x - raise, y),
        false => (x, y - raise),
    }
}

fn stroke(paint: Paint, width: f64) -> ShapeStyle {
    colour(paint, 1.0).stroke_width(pixels(width * DRAWN).max(1))
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
        write(&scene, &path).unwrap();
        let file = std::fs::read(&path).unwrap();
        assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
        let side = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((side(16), side(20)), (240, 80));
    }
}
