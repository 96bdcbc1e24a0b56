"""The style sheet of the page: light and dark, for phones, screens and paper.

Colours follow the Okabe-Ito palette, which colour-blind readers can tell apart. Colour is never the only signal.
"""

STYLE = """
:root{color-scheme:light dark;--page:#f4f6f8;--card:#fff;--ink:#17202a;--soft:#566472;--line:#dfe4e9;--hover:#0000000d;
--first:#2a6fb8;--second:#c25e00;--third:#00806a;--bad:#b3261e;--bad-soft:#fbeae8;--good:#00705c;--good-soft:#e3f4f0;
--warn-soft:#fdf3dc;--warn:#8a5300}
@media (prefers-color-scheme:dark){:root{--page:#0f1418;--card:#181f26;--ink:#e7ecf0;--soft:#9fadb9;--line:#2c363f;
--hover:#ffffff12;--first:#68aaf2;--second:#f0a04f;--third:#4ccdb0;--bad:#ff8f80;--bad-soft:#3a1f1d;--good:#5fd3b5;
--good-soft:#12332c;--warn-soft:#33290f;--warn:#f0c060}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
-webkit-text-size-adjust:100%}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:1.75rem;line-height:1.2;letter-spacing:-.015em;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:1.05rem;letter-spacing:-.005em;margin:0 0 2px}
h3{font-size:.82rem;font-weight:600;margin:18px 0 8px;color:var(--soft)}
p{margin:0 0 10px}
.lead,.note{color:var(--soft)}
.note{font-size:.85rem;margin-bottom:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:12px;margin:22px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px 11px;min-width:0}
.tile b{display:block;overflow:hidden;text-overflow:ellipsis;
font-size:1.45rem;line-height:1.25;font-weight:650;letter-spacing:-.02em;white-space:nowrap;
font-variant-numeric:tabular-nums}
.tile span{display:block;font-size:.82rem;color:var(--soft)}
.tile.bad b{color:var(--bad)}.tile.good b{color:var(--good)}
.cards,.pack>div{display:grid;grid-template-columns:minmax(0,1fr);gap:16px;align-content:start}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px 16px;min-width:0}
section>:last-child,section>:last-child>:last-child{margin-bottom:0}
.pack{display:grid;grid-template-columns:minmax(0,1fr);gap:16px}
@media (min-width:880px){.pack{grid-template-columns:repeat(2,minmax(0,1fr))}}
.banner{border:1px solid;border-left-width:5px;border-radius:10px;padding:11px 16px;margin:20px 0 0;
overflow-wrap:anywhere}
.banner.bad{border-color:var(--bad);background:var(--bad-soft)}.banner.bad b{color:var(--bad)}
.banner.warn{border-color:var(--warn);background:var(--warn-soft)}.banner.warn b{color:var(--warn)}
.banner ul{margin:3px 0 0;padding-left:18px}
.chart{display:grid;grid-template-columns:auto minmax(0,1fr);column-gap:8px;margin:8px 0 14px}
.plot{display:block;width:100%;height:170px;overflow:visible;grid-column:2}
.y{position:relative;width:4.1rem;grid-column:1}
.y span{position:absolute;right:0;transform:translateY(50%);white-space:nowrap}
.x{grid-column:2;position:relative;height:1.5rem;margin-top:5px}
.x span{position:absolute;white-space:nowrap}
.x .middle{transform:translateX(-50%)}.x .right{transform:translateX(-100%)}
.y,.x{font-size:.74rem;color:var(--soft);font-variant-numeric:tabular-nums}
.grid line{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.first rect,rect.first{fill:var(--first)}.second rect{fill:var(--second)}.third rect{fill:var(--third)}
.soft rect{fill:var(--line)}.bad rect{fill:var(--bad)}
.mark .hit{fill:transparent}.mark:hover .hit{fill:var(--hover)}.mark:hover rect:not(.hit){opacity:.75}
.bars{display:grid;grid-template-columns:fit-content(40%) minmax(40px,1fr) auto auto;gap:7px 14px;align-items:center;
margin:12px 0}
.bars.three{grid-template-columns:fit-content(40%) minmax(40px,1fr) auto}
.bars .row{display:contents}
.bars .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bars .num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.bars .num.soft{color:var(--soft)}
.share{display:block;width:100%;height:12px}
.spans{display:block;width:100%;height:18px;background:var(--line);border-radius:2px;margin:4px 0}
.figures{display:flex;flex-wrap:wrap;gap:6px 26px;margin:4px 0 8px}
.figures div{font-size:.85rem;color:var(--soft)}
.figures b{color:var(--ink);font-variant-numeric:tabular-nums;font-weight:600}
.badge{display:inline-block;margin-top:8px;border-radius:6px;padding:1px 9px;font-size:.85rem;font-weight:600}
.badge.good{color:var(--good);background:var(--good-soft)}.badge.bad{color:var(--bad);background:var(--bad-soft)}
.badge.warn{color:var(--warn);background:var(--warn-soft)}
.scroll{overflow-x:auto;margin:8px 0}
table{border-collapse:collapse;width:100%;font-size:.86rem}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere;min-width:5.5em}
th{color:var(--soft);font-weight:600;white-space:nowrap}
td.w{min-width:15em}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;min-width:0}
th:last-child,td:last-child{padding-right:2px}
b.bad{color:var(--bad)}
.topics td:first-child,.topics th:first-child{position:sticky;left:0;background:var(--card);min-width:8em}
.spark{display:block;width:120px;height:22px;overflow:visible}
.spark path{fill:var(--first);opacity:.18}
.spark polyline{fill:none;stroke:var(--first);stroke-width:1.5;vector-effect:non-scaling-stroke;stroke-linejoin:round}
details{margin-top:8px}
summary{cursor:pointer;color:var(--soft);font-size:.85rem;width:fit-content}
summary:hover{color:var(--ink)}
summary:focus-visible{outline:2px solid var(--first);outline-offset:3px;border-radius:3px}
footer{padding-top:20px;padding-bottom:44px;color:var(--soft);font-size:.82rem}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
@media (max-width:560px){
main,header,footer{padding-left:14px;padding-right:14px}header{padding-top:22px}h1{font-size:1.4rem}
section{padding:15px 14px 12px}.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:9px;margin:16px 0}
.tile{padding:10px 12px}.tile b{font-size:1.25rem}
.plot{height:140px}.y{width:3.5rem}.x .minor{display:none}
.x .late{transform:translateX(-80%)}
.bars,.bars.three{display:block}.bars .row{display:grid;grid-template-columns:minmax(0,1fr) auto auto;gap:1px 12px}
.topics td:first-child{min-width:10.5em}.spark{width:80px}
.bars .bar{grid-column:1/-1;order:1;margin-bottom:9px}}
@media print{:root{--page:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--first:#2a6fb8;--second:#c25e00;
--third:#00806a;--bad:#b3261e;--bad-soft:#fff;--good:#00705c;--good-soft:#fff}
body{font-size:11px}section,.tile{break-inside:avoid;border-color:#ccc}main,header,footer{max-width:none;padding:0}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.scroll{overflow:visible}}
"""
