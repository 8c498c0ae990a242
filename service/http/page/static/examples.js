/** What the panels begin with, in each language. */

export const MASK = {
  en: [
    { text: "She was ill, so she went to see a {mask}.", hidden: ["doctor"] },
    { text: "A cat has four legs and a long {mask}.", hidden: ["tail"], targets: "tail, neck, river" },
    { text: "He was born in {mask} and died in {mask}.", hidden: ["England", "London"] },
  ],
  zh: [
    { text: "这本书很有{mask}思。", hidden: ["意"] },
    { text: "请把你的名{mask}写在这里。", hidden: ["字"], targets: "字, 单, 河" },
    { text: "他在{mask}学学习历{mask}。", hidden: ["大", "史"] },
  ],
};

export const PAIRS = {
  en: [
    ["The sun was going down.", "The sky turned red and the street lights came on."],
    ["The sun was going down.", "The company sells computers in forty countries."],
    ["I went to the shop to buy some bread.", "But the shop was closed."],
  ],
  zh: [
    ["我喜欢学习中文。", "因为它很有趣。"],
    ["我喜欢学习中文。", "比赛因为下雨取消了。"],
    ["他去商店买面包。", "但是商店关门了。"],
  ],
};

export const SIMILAR = {
  en: [
    {
      name: "It is raining and cold.",
      query: "It is raining and cold.",
      lines: ["The weather is bad today.", "It snowed all night.", "Winter came early this year.", "We will eat fish for dinner.",
        "She likes to read books.", "He bought a new computer.", "My brother works in a bank."],
    },
    {
      name: "How can I learn English?",
      query: "How can I learn English?",
      lines: ["What is the best way to study a language?", "I want to speak Chinese better.", "My car does not start.",
        "Where is the nearest hospital?", "The film was very boring.", "He has two brothers."],
    },
    {
      name: "English + 中文",
      query: "The dog is playing in the garden.",
      lines: ["狗在花园里玩。", "A puppy runs outside.", "天气很冷。", "It is very cold today.", "我喜欢喝茶。", "I like to drink tea."],
    },
  ],
  zh: [
    {
      name: "今天天气很差。",
      query: "今天天气很差。",
      lines: ["天气不好。", "昨晚下了雪。", "今年冬天来得早。", "我们晚饭吃鱼。", "她喜欢看书。", "他买了一台新电脑。", "我哥哥在银行工作。"],
    },
    {
      name: "我饿了。",
      query: "我饿了。",
      lines: ["我想吃点东西。", "晚饭准备好了。", "他口渴了。", "公共汽车晚点了。", "我父亲是医生。", "他们住在一个小村子里。"],
    },
    {
      name: "中文 + English",
      query: "狗在花园里玩。",
      lines: ["The dog is playing in the garden.", "小狗在外面跑。", "It is very cold today.", "天气很冷。", "I like to drink tea.", "我喜欢喝茶。"],
    },
  ],
};

export const INSIDE = { // with a head of the bundled model, and the word whose row shows what it reads: the last of its spelling
  en: [
    ["the dog when it is old", "", { layer: 6, head: 12, word: "it" }],
    ["My dog is cute.", "He likes playing.", { layer: 3, head: 2, word: "is" }],
    ["The unbelievable hairdresser misunderstood everything.", "", { layer: 1, head: 6, word: "##st" }],
    ["The animal did not cross the street because it was too tired.", "", { layer: 6, head: 12, word: "it" }],
  ],
  zh: [
    ["我的狗很可爱。", "它喜欢玩。", { layer: 6, head: 12, word: "它" }],
    ["北京大学在北京。", "", { layer: 6, head: 6, word: "京" }],
    ["他没有来，因为他太累了。", "", { layer: 3, head: 5, word: "他" }],
  ],
};

export const LABELS = {
  en: ["I like tea.", "The film was far too long.", "What a wonderful evening!"],
  zh: ["我喜欢喝茶。", "这部电影太长了。", "多么美好的夜晚！"],
};

export const TAGS = {
  en: ["My name is Clara and I live in Berkeley.", "Angela Merkel met the board of Siemens in Munich."],
  zh: ["我叫李华，住在北京。", "小王在上海的银行工作。"],
};

export const SURPRISES = {
  en: [
    ["He drinks a cup of tea every morning.", "He drinks a cup of sand every morning."],
    ["The capital of France is Paris.", "The capital of France is Berlin."],
    ["She went to the shop to buy some bread.", ""],
  ],
  zh: [
    ["他每天早上喝一杯茶。", "他每天早上喝一杯沙。"],
    ["中国的首都是北京。", "中国的首都是东京。"],
    ["她去商店买面包。", ""],
  ],
};

export const ANSWERS = {
  en: [
    { question: "Where do I live?", context: "My name is Clara. I live in Berkeley, and I work in a library in Oakland." },
    { question: "When was the bridge opened?", context: "The bridge was planned in 1921. Work began in 1933, and it was opened in May 1937." },
  ],
  zh: [
    { question: "我住在哪里？", context: "我叫李华，住在北京，在上海的一家图书馆工作。" },
    { question: "大桥什么时候通车？", context: "大桥于1921年开始规划，1933年动工，1937年5月通车。" },
  ],
};

export const CHOICES = {
  en: [
    { prompt: "How is pizza eaten in Italy?", choices: ["It is eaten with a fork.", "It is eaten while held in the hand.", "It is drunk."] },
    { prompt: "He opened the umbrella because", choices: ["it began to rain.", "he was hungry.", "the shop was closed."] },
  ],
  zh: [
    { prompt: "他打开了雨伞，因为", choices: ["下雨了。", "他饿了。", "商店关门了。"] },
    { prompt: "她把灯关了，因为", choices: ["她要睡觉了。", "她想喝茶。", "车来了。"] },
  ],
};

export const ZERO_SHOT = {
  en: [
    { text: "The team won the match in the last minute.", labels: "sport, politics, cooking" },
    { text: "Add the eggs and stir until the sauce is smooth.", labels: "sport, politics, cooking" },
  ],
  zh: [
    { text: "球队在最后一分钟赢得了比赛。", labels: "体育，政治，烹饪" },
    { text: "加入鸡蛋，搅拌到酱汁顺滑。", labels: "体育，政治，烹饪" },
  ],
};
