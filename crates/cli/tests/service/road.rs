//! The picture of the road in ARCHITECTURE.md: drawn from a text, up to date, and of files that exist.
//!
//! In:    docs/images/road.txt. Out: docs/images/road.svg, compared with the committed one.
//!        `UPDATE_PICTURE=1 cargo test -p leasehold --test service picture` writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const WIDTH: usize = 900;
const MARGIN: usize = 16;
/// A hop's box, and the arrow below it.
const HOP_HEIGHT: usize = 46;
const GAP: usize = 20;
const HOP_LEFT: usize = 110;
const HOP_WIDTH: usize = 450;
const SIDE_LEFT: usize = 640;
const SIDE_WIDTH: usize = WIDTH - SIDE_LEFT - MARGIN;
/// One colour a crate.
const COLOURS: [(&str, &str); 3] = [("server", "#e3edf8"), ("engine", "#e7f3e4"), ("core", "#f8eadb")];

/// How all pictures look.
pub(crate) const STYLE: &str = r"<style>text{font-family:sans-serif;fill:#1c2733}.name{font:600 14px monospace}.what{font-size:13px}.crate{font:600 14px sans-serif;fill:#5a6673}.hop{fill:#fff;stroke:#7d8a97}.end{fill:#1c2733;fill-opacity:.08;stroke:#7d8a97}.side{fill:#fff;stroke:#7d8a97;stroke-dasharray:4 3}.arrow{fill:none;stroke:#5a6673;stroke-width:1.5}</style>";
/// The head of an arrow.
pub(crate) const HEAD: &str = r##"<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#5a6673"/></marker></defs>"##;

/// A box of the road.
struct Hop {
    /// Its crate; none at both ends.
    of: Option<String>,
    name: String,
    what: String,
    sides: Vec<(String, String)>,
}

pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(text: &str) -> Vec<Hop> {
    let (mut hops, mut of): (Vec<Hop>, _) = (Vec::new(), None);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<String> = line.split('|').map(|part| part.trim().to_string()).collect();
        match &parts[..] {
            [kind, name] if kind == "crate" => of = Some(name.clone()),
            [kind, name, what] if kind == "hop" || kind == "end" => {
                let of = of.clone().filter(|_| kind == "hop");
                hops.push(Hop { of, name: name.clone(), what: what.clone(), sides: Vec::new() });
            }
            [kind, name, path] if kind == "side" => {
                hops.last_mut().unwrap().sides.push((name.clone(), path.clone()));
            }
            _ => panic!("no line of a road: {line}"),
        }
    }
    hops
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace("->", "→").replace('>', "&gt;")
}

fn text(svg: &mut String, (x, y): (usize, usize), class: &str, text: &str) {
    writeln!(svg, r#"<text x="{x}" y="{y}" class="{class}">{}</text>"#, escaped(text)).unwrap();
}

/// The band behind the hops of one crate.
fn band(svg: &mut String, name: &str, (top, bottom): (usize, usize)) {
    let colour = COLOURS.iter().find(|(of, _)| *of == name).expect("a crate with a colour").1;
    let (width, height) = (HOP_LEFT + HOP_WIDTH, bottom - top);
    writeln!(
        svg,
        r#"<rect x="{MARGIN}" y="{top}" width="{width}" height="{height}" rx="8" fill="{colour}"/>"#
    )
    .unwrap();
    text(svg, (MARGIN + 12, (top + bottom) / 2 + 5), "crate", name);
}

fn hop_box(svg: &mut String, hop: &Hop, top: usize) {
    let class = if hop.of.is_some() { "hop" } else { "end" };
    writeln!(
        svg,
        r#"<rect x="{HOP_LEFT}" y="{top}" width="{HOP_WIDTH}" height="{HOP_HEIGHT}" rx="6" class="{class}"/>"#
    )
    .unwrap();
    text(svg, (HOP_LEFT + 14, top + 19), "name", &hop.name);
    text(svg, (HOP_LEFT + 14, top + 37), "what", &hop.what);
    let each = HOP_HEIGHT / hop.sides.len().max(1);
    for (number, (name, path)) in hop.sides.iter().enumerate() {
        let middle = top + each * number + each / 2;
        let (from, to) = (HOP_LEFT + HOP_WIDTH, SIDE_LEFT - 6);
        writeln!(svg, r#"<path d="M{from} {middle}H{to}" class="arrow" marker-end="url(#head)"/>"#).unwrap();
        let (y, height) = (middle - 11, 22);
        writeln!(
            svg,
            r#"<rect x="{SIDE_LEFT}" y="{y}" width="{SIDE_WIDTH}" height="{height}" rx="6" class="side"><title>{}</title></rect>"#,
            escaped(path)
        )
        .unwrap();
        text(svg, (SIDE_LEFT + 10, middle + 4), "what", name);
    }
}

fn draw(hops: &[Hop]) -> String {
    let step = HOP_HEIGHT + GAP;
    let height = 2 * MARGIN + hops.len() * step - GAP;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="The road of a request">
{STYLE}
{HEAD}
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
"##
    );
    let top_of = |number: usize| MARGIN + number * step;
    let mut number = 0;
    for group in hops.chunk_by(|one, next| one.of == next.of) {
        if let Some(name) = &group[0].of {
            let bottom = top_of(number + group.len() - 1) + HOP_HEIGHT;
            band(&mut svg, name, (top_of(number) - 6, bottom + 6));
        }
        number += group.len();
    }
    for (number, hop) in hops.iter().enumerate() {
        hop_box(&mut svg, hop, top_of(number));
        if number > 0 {
            let (x, from, to) = (HOP_LEFT + HOP_WIDTH / 2, top_of(number) - GAP, top_of(number) - 1);
            writeln!(svg, r#"<path d="M{x} {from}V{to}" class="arrow" marker-end="url(#head)"/>"#).unwrap();
        }
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_of_the_road_is_up_to_date_and_names_files_that_exist() {
    let hops = read(&fs::read_to_string(root("docs/images/road.txt")).unwrap());
    let paths = hops.iter().filter(|hop| hop.of.is_some()).flat_map(|hop| {
        [&hop.name].into_iter().chain(hop.sides.iter().map(|(_, path)| path)).cloned().collect::<Vec<_>>()
    });
    for path in paths {
        assert!(root("crates").join(&path).exists(), "the road names {path}, which is not there");
    }
    up_to_date("road", &draw(&hops));
}

/// Compares a picture with the committed one, or writes it if `UPDATE_PICTURE` is set.
pub(crate) fn up_to_date(name: &str, drawn: &str) {
    let file = root(&format!("docs/images/{name}.svg"));
    if std::env::var_os("UPDATE_PICTURE").is_some() {
        fs::write(&file, drawn).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        drawn == committed,
        "docs/images/{name}.svg is out of date: UPDATE_PICTURE=1 cargo test -p leasehold --test service picture"
    );
}
