"""Colours of reports for light and dark screens, and the style sheets of charts and pages."""

from __future__ import annotations

# Colours of the groups, based on Okabe and Ito. Colour-blind readers can tell them apart. They are darker on white and
# lighter on black. Groups also differ in marker and dash.
LIGHT_COLORS = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#565d66",
    "rule": "#d5dae0",
    "fill": "#f4f6f8",
    "link": "#005a9c",
    "cool": "#0072b2",
    "warm": "#d55e00",
    "g0": "#0072b2",
    "g1": "#d55e00",
    "g2": "#006b3c",
    "g3": "#8a2b7a",
    "g4": "#6b5d00",
    "g5": "#222222",
}
DARK_COLORS = {
    "paper": "#14171b",
    "ink": "#e8eaed",
    "soft": "#a9b0b8",
    "rule": "#3a4048",
    "fill": "#1e2329",
    "link": "#7cc0f4",
    "cool": "#2f8fd8",
    "warm": "#e0702a",
    "g0": "#56b4e9",
    "g1": "#f08a4b",
    "g2": "#009e73",
    "g3": "#cc79a7",
    "g4": "#ffd92f",
    "g5": "#e8eaed",
}
# Maximum number of groups: the number of group colours; each colour also has a dash pattern
MAX_GROUPS = sum(name.startswith("g") for name in LIGHT_COLORS)
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2", "1 4")


def _format_css_variables(colors: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colors.items())


# Dark colours are for screens only, because paper is white.
COLORS_CSS = (
    f":root{{color-scheme:light dark;{_format_css_variables(LIGHT_COLORS)}}}\n"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_format_css_variables(DARK_COLORS)}}}}}\n"
)

CHARTS_CSS = (
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .soft{fill:var(--soft)}"
    "svg .small{font-size:11px}svg .tiny{font-size:10px}"
    "svg .back{fill:var(--paper)}svg .rule{stroke:var(--rule);stroke-width:1}"
    "svg .axis{stroke:var(--soft);stroke-width:1}svg .mark{stroke:var(--soft);stroke-dasharray:4 3}"
    "svg .line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}"
    "svg .band{fill:var(--c);fill-opacity:.18}svg .dot{fill:var(--c);stroke:var(--paper);stroke-width:.5}"
    "svg .hollow{fill:var(--paper);stroke:var(--c);stroke-width:1.6}svg .bar{stroke:var(--c);stroke-width:2}"
    "svg .cool{fill:var(--cool)}svg .warm{fill:var(--warm)}svg .cell{stroke:var(--rule);stroke-width:.5}\n"
    + "".join(
        f"svg .g{i}{{--c:var(--g{i})}}svg .g{i} .line{{stroke-dasharray:{dash}}}" for i, dash in enumerate(DASHES)
    )
    + "\n"
)

PAGE_CSS = """*{box-sizing:border-box}
body{margin:0 auto;max-width:66rem;padding:1rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--rule);padding-top:1rem}
p,ul{max-width:44rem;margin:.6rem 0}
a{color:var(--link)}
.lead{font-size:1.05rem;color:var(--soft)}
nav ul{columns:12rem;padding-left:1.2rem}
code{font:.9em ui-monospace,monospace;background:var(--fill);padding:.1em .3em;border-radius:.2em}
.hint{border-left:.25rem solid var(--rule);padding:.2rem .8rem;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:1rem 2rem;
align-items:start}
figure{margin:.8rem 0;min-width:0;break-inside:avoid}
figcaption{font-size:.9rem;margin-bottom:.4rem}
figcaption b{display:block}
figcaption span{color:var(--soft)}
figure svg{display:block;width:100%;max-width:30rem;height:auto}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(6.2rem,1fr));gap:.6rem;
padding:0;list-style:none;max-width:none}
.gallery li{font-size:.75rem;line-height:1.2;color:var(--soft);break-inside:avoid}
.gallery img{width:100%;height:auto;display:block;image-rendering:pixelated;border:1px solid var(--rule)}
.scroll{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;min-width:min(100%,18rem);font-size:.86rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding-bottom:.3rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
thead th{vertical-align:bottom;color:var(--soft);font-weight:600}
tbody th{font-weight:400}
.numbers td,.numbers thead th:not(:first-child){text-align:right}
details{font-size:.86rem;margin-top:.3rem}
summary{color:var(--soft);cursor:pointer}
@media screen and (max-width:36rem){body{padding:.75rem}table{font-size:.72rem}th,td{padding:.25rem .2rem}
tbody th{min-width:3.7rem}}
@media print{@page{margin:14mm}body{max-width:none;padding:0;font-size:10pt}details,nav{display:none}
h2{break-after:avoid}.scroll{overflow:visible}.charts{grid-template-columns:1fr 1fr}
table{font-size:8pt}.gallery{grid-template-columns:repeat(8,1fr)}tr{break-inside:avoid}}
"""
