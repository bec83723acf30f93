// The page of `nmtkit serve`. All text is set as text. Offsets of the server count code points, as [...text] does.
const settings = JSON.parse(document.getElementById("settings").textContent);
const [source, target, swap, count, key, text, backdrop, output, others, left, status] =
  "source target swap count key text backdrop output others left status".split(" ")
    .map(id => document.getElementById(id));
const segmenter = new Intl.Segmenter(undefined, {granularity: "word"});
let timer, request, links = [];  // links: of each word of the translation, its element and the words it comes from

const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
const direction = () => settings.directions.find(([from, to]) => from === source.value && to === target.value);
const showStatus = (textContent, className = "") => Object.assign(status, {textContent, className});
const nameOf = code => {
  try { return new Intl.DisplayNames(["en"], {type: "language"}).of(code); } catch { return code; }  // such as eng_Latn
};
const fill = (select, values, label = value => value) => {
  const chosen = select.value;
  select.replaceChildren(...values.map(value => new Option(label(value), value)));
  if (values.map(String).includes(chosen)) select.value = chosen;
};

function choose() {  // after the languages have changed
  fill(target, settings.directions.filter(([from]) => from === source.value).map(([, to]) => to), nameOf);
  fill(count, [1, 2, 3, 4, 5].slice(0, direction()[2] || 1));
  count.parentElement.hidden = count.length === 1;
  swap.disabled = !settings.directions.some(([from, to]) => from === target.value && to === source.value);
  [text.lang, output.lang, others.lang] = [source.value, target.value, target.value];
  later();
}

function later() {
  clearTimeout(timer);
  request?.abort();  // the server discards the work
  mark([]);
  const rest = settings.maxCharacters - [...text.value].length;
  left.textContent = rest < 0 ? `${-rest} characters too many` : `${rest} characters left`;
  left.classList.toggle("over", rest < 0);
  if (rest >= 0) timer = setTimeout(translate, 300);
}

async function translate() {
  const q = text.value, [from, to, , hasAlignment] = direction();
  showStatus("");
  if (!q.trim()) return show("", {translatedText: ""});
  request = new AbortController();
  output.ariaBusy = "true";
  try {
    const fields = {q, source: from, target: to, alignment: hasAlignment, n_best: Number(count.value), api_key: key.value};
    const response = await fetch("translate", {
      method: "POST", signal: request.signal, body: JSON.stringify(fields),
      headers: {"Content-Type": "application/json"},
    });
    const answer = await response.json();
    if (response.ok) return show(q, answer);
    showStatus(answer.error, "error");
    if (response.headers.has("Retry-After")) timer = setTimeout(translate, 1000 * response.headers.get("Retry-After"));
  } catch (error) {
    if (error.name !== "AbortError") showStatus("The server does not answer.", "error");
  }
}

function words(content) {
  let end = 0;
  return [...segmenter.segment(content)].map(({segment}) => ({segment, start: end, end: end += [...segment].length}));
}

function show(q, {translatedText, alternatives = [], alignment = []}) {
  const sources = words(q), meet = (word, start, end) => word.start < end && word.end > start;
  links = words(translatedText).map(word => {
    const pairs = alignment.filter(([, , start, end]) => meet(word, start, end));
    const from = sources.filter(each => pairs.some(([start, end]) => meet(each, start, end)));
    return [make("span", {textContent: word.segment}), from];
  });
  output.replaceChildren(...links.map(([element]) => element));
  others.replaceChildren(...alternatives.map(textContent => make("li", {textContent, dir: "auto"})));
  output.ariaBusy = "false";
}

function mark(marked) {
  links.forEach(link => link[0].classList.toggle("marked", marked.includes(link)));
  const characters = [...text.value], parts = [];
  let end = 0;
  for (const word of [...new Set(marked.flatMap(([, from]) => from))].sort((one, other) => one.start - other.start)) {
    parts.push(characters.slice(end, word.start).join(""), make("mark", {textContent: word.segment}));
    end = word.end;
  }
  backdrop.replaceChildren(...parts, characters.slice(end).join("") + "\n");
}

output.addEventListener("pointerover", event => mark(links.filter(([element]) => element === event.target)));
for (const kind of ["pointerleave", "blur"]) output.addEventListener(kind, () => mark([]));
output.addEventListener("keydown", event => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key], linked = links.filter(([, from]) => from.length);
  if (!step || !linked.length) return;
  const at = linked.findIndex(([element]) => element.classList.contains("marked"));
  const link = linked.at(at < 0 ? Math.min(step - 1, 0) / 2 : (at + step) % linked.length);
  mark([link]);
  showStatus(`${link[0].textContent}: ${link[1].map(word => word.segment).join(" ")}`);
  event.preventDefault();
});
document.addEventListener("selectionchange", () => {
  const at = [...text.value.slice(0, text.selectionStart)].length;
  const isHere = word => word.start <= at && at < word.end;
  if (document.activeElement === text) mark(links.filter(([, from]) => from.some(isHere)));
});
for (const [element, kind, action] of [[text, "input", later], [key, "input", later], [count, "change", later],
  [source, "change", choose], [target, "change", choose]]) element.addEventListener(kind, action);
swap.addEventListener("click", () => {
  const from = source.value;
  [source.value, text.value] = [target.value, output.textContent];
  fill(target, [from]);
  choose();
});
key.parentElement.hidden = !settings.needsKey;
fill(source, [...new Set(settings.directions.map(([from]) => from))], nameOf);
choose();
