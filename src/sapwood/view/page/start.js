// Everything begins, top to bottom.

function beginTheme() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const tell = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
    recolour();
  });
  dark.addEventListener("change", tell);
  tell();
}

function beginFunctionChoice() {
  const choice = document.getElementById("function");
  choice.append(...functionNames.map((name) => make("option", { value: name }, name)));
  choice.addEventListener("change", () => change({ function: choice.value }));
  watch(() => { choice.value = state.function; });
}

beginTheme();
summarise();
beginFunctionChoice();
beginFunctions();
beginTimeline();
beginList();
beginDetail();
beginPages();
beginRanges();
beginMisses();
beginStore();
beginEvents();
fill("foot", `Drawn from a snapshot of schema ${snapshot.schema}. This page is whole: it asks nothing of the network.`);
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
