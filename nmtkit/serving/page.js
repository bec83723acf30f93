// The page of `nmtkit serve`. Foreign text is set as text. The offsets of the server count code points, as [...text] does.
const settings = JSON.parse(document.getElementById("settings").textContent);
const [source, target, swap, count, key, text, backdrop, output, others, left, status] =
  ["source", "target", "swap", "count", "key", "text", "backdrop", "output", "others", "left", "status"]
    .map(id => document.getElementById(id));
const segmenter = new Intl.Segmenter(undefined, {granularity: "word"});
let timer, request, links = [];  // of each word of the translation: its element, and the words of the source

function nameOf(code) {
  try { return new Intl.DisplayNames(["en"], {type: "language"}).of(code); } catch { return code; }
}

function fill(select, values, label = value => value) {
  const chosen = select.value;
  select.replaceChildren(...values.map(value => new Option(label(value), value)));
  if (values.map(String).includes(chosen)) select.value = chosen;
}

function direction() {
  return settings.directions.find(([from, to]) => from === source.value && to === target.value);
}

function choose() {
  fill(target, settings.directions.filter(([from]) => from === source.value).map(([, to]) => to), nameOf);
  const most = Math.min(5, direction()[2]);
  fill(count, Array.from({length: most}, (_, index) => index + 1));
  document.getElementById("count-field").hidden = most === 1;
  swap.disabled = !settings.directions.some(([from, to]) => from === target.value && to === source.value);
  [text.lang, output.lang, others.lang] = [source.value, target.value, target.value];
  later();
}

function later() {
  clearTimeout(timer);
  request?.abort();  // the server discards what nobody waits for
  mark([]);
  const rest = settings.maxCharacters - [...text.value].length;
  left.textContent = rest < 0 ? `${-rest} characters too many` : `${rest} characters left`;
  left.classList.toggle("over", rest < 0);
  if (rest >= 0) timer = setTimeout(translate, 300);
}

async function translate() {
  const q = text.value;
  status.textContent = "";
  if (!q.trim()) return show("", {translatedText: ""});
  request = new AbortController();
  const [from, to, , canAlign] = direction();
  const body = {q, source: from, target: to, n_best: Number(count.value), alignment: canAlign};
  const headers = {"Content-Type": "application/json", ...(key.value && {Authorization: `Bearer ${key.value}`})};
  output.ariaBusy = "true";
  try {
    const response = await fetch("translate", {method: "POST", headers, body: JSON.stringify(body), signal: request.signal});
    const answer = await response.json();
    if (response.ok) return show(q, answer);
    status.textContent = answer.error;
    if (response.status === 503) timer = setTimeout(translate, 1000 * (response.headers.get("Retry-After") || 1));
  } catch (error) {
    if (error.name !== "AbortError") status.textContent = "The server does not answer.";
  }
}

function words(content) {
  let end = 0;
  return [...segmenter.segment(content)].map(({segment}) => ({segment, start: end, end: end += [...segment].length}));
}

function show(q, answer) {
  const pairs = answer.alignment ?? [], sources = words(q);
  const meet = (word, start, end) => word.start < end && word.end > start;
  links = words(answer.translatedText).map(word => {
    const element = Object.assign(document.createElement("span"), {textContent: word.segment});
    const own = pairs.filter(([, , start, end]) => meet(word, start, end));
    return [element, sources.filter(each => own.some(([start, end]) => meet(each, start, end)))];
  });
  output.replaceChildren(...links.map(([element]) => element));
  others.replaceChildren(...(answer.alternatives ?? []).map(each => {
    return Object.assign(document.createElement("li"), {textContent: each, dir: "auto"});
  }));
  output.ariaBusy = "false";
}

function mark(marked) {  // words of the translation, with the words of the source that they come from
  links.forEach(link => link[0].classList.toggle("marked", marked.includes(link)));
  const characters = [...text.value], ofSource = new Set(marked.flatMap(([, sources]) => sources)), parts = [];
  let end = 0;
  for (const word of [...ofSource].sort((one, other) => one.start - other.start)) {
    const element = document.createElement("mark");
    element.textContent = characters.slice(word.start, word.end).join("");
    parts.push(characters.slice(end, word.start).join(""), element);
    end = word.end;
  }
  backdrop.replaceChildren(...parts, characters.slice(end).join("") + "\n");
}

output.addEventListener("pointerover", event => mark(links.filter(([element]) => element === event.target)));
output.addEventListener("pointerleave", () => mark([]));
output.addEventListener("blur", () => mark([]));
output.addEventListener("keydown", event => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key], linked = links.filter(([, sources]) => sources.length);
  if (!step || !linked.length) return;
  event.preventDefault();
  const at = linked.findIndex(([element]) => element.classList.contains("marked"));
  const link = linked[(at + step + linked.length + (at < 0 && step < 0)) % linked.length];
  mark([link]);
  status.textContent = `${link[0].textContent}: ${link[1].map(word => word.segment).join(" ")}`;
});
document.addEventListener("selectionchange", () => {
  if (document.activeElement !== text) return;
  const at = [...text.value.slice(0, text.selectionStart)].length;
  mark(links.filter(([, sources]) => sources.some(word => word.start <= at && at < word.end)));
});
text.addEventListener("input", later);
key.addEventListener("input", later);
count.addEventListener("change", later);
source.addEventListener("change", choose);
target.addEventListener("change", choose);
swap.addEventListener("click", () => {
  [source.value, text.value] = [target.value, output.textContent];
  choose();
});
document.getElementById("key-field").hidden = !settings.needsKey;
fill(source, [...new Set(settings.directions.map(([from]) => from))], nameOf);
choose();
