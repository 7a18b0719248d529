// Examples of the tasks: the values of the fields, in each language. [MASK] stands for the model's mask token.

export const EXAMPLES = {
  classify: [
    {
      en: { text: "The soup was cold, and nobody at the counter seemed to care." },
      ko: { text: "수프는 식어 있었고, 계산대의 누구도 신경 쓰지 않는 것 같았다." },
    },
    {
      en: { text: "I laughed all the way through, and the ending stayed with me for days." },
      ko: { text: "보는 내내 웃었고, 결말은 며칠 동안 마음에 남았다." },
    },
    {
      en: { text: "A long film that has one good idea and never stops repeating it." },
      ko: { text: "좋은 생각 하나를 끝없이 되풀이하는 긴 영화다." },
    },
  ],
  qa: [
    {
      en: {
        question: "When was the bridge built?",
        context:
          "A storm took the wooden bridge. The stone bridge was built in 1874, two hundred metres up the river, and " +
          "is still open to carts and bicycles.",
      },
      ko: {
        question: "다리는 언제 지어졌나요?",
        context:
          "나무다리는 폭풍에 떠내려갔다. 돌다리는 1874년에 강을 따라 200미터 위쪽에 지어졌고, 지금도 수레와 자전거가 " +
          "다닌다.",
      },
    },
    {
      en: {
        question: "Where does the ferry stop?",
        context:
          "The ferry leaves the harbour at seven every morning. It stops at the old lighthouse for ten minutes, and " +
          "reaches the island before nine.",
      },
      ko: {
        question: "배는 어디에 들르나요?",
        context: "배는 매일 아침 일곱 시에 항구를 떠난다. 옛 등대에 10분 동안 들렀다가 아홉 시 전에 섬에 닿는다.",
      },
    },
    {
      en: {
        question: "Who repaired the clock?",
        context:
          "The clock of the town hall stood still for eleven years. In spring a retired watchmaker named Ida repaired " +
          "it in one weekend, and asked for nothing but a cup of tea 🫖.",
      },
      ko: {
        question: "누가 시계를 고쳤나요?",
        context:
          "시청의 시계는 11년 동안 멈춰 있었다. 봄에 은퇴한 시계공 이다가 주말 이틀 만에 시계를 고쳤고, 차 한 잔 🫖 " +
          "말고는 아무것도 바라지 않았다.",
      },
    },
  ],
  "fill-mask": [
    {
      en: { text: "The school was built in the nineteenth [MASK]." },
      ko: { text: "그 학교는 십구 [MASK]에 지어졌다." },
    },
    {
      en: { text: "He was born in a small [MASK] in the north of the country." },
      ko: { text: "그는 나라 북쪽의 작은 [MASK]에서 태어났다." },
    },
    {
      en: { text: "Snow falls in the [MASK] and melts in the [MASK]." },
      ko: { text: "눈은 [MASK]에 내리고 [MASK]에 녹는다." },
    },
  ],
  entities: [
    {
      en: { text: "Clara Keller moved from Bern to New York to work for the United Nations." },
      ko: { text: "클라라 켈러는 유엔에서 일하려고 베른에서 뉴욕으로 이사했다." },
    },
    {
      en: { text: "The ferry to Jeju left Mokpo with forty guests of Hyundai." },
      ko: { text: "제주행 배는 현대의 손님 마흔 명을 태우고 목포를 떠났다." },
    },
  ],
  "zero-shot": [
    {
      en: { text: "The new phone has a better camera.", candidate_labels: "technology, cooking, travel" },
      ko: { text: "새 휴대폰은 카메라가 더 좋다.", candidate_labels: "기술, 요리, 여행" },
    },
    {
      en: { text: "Fold in the flour slowly, then let it rest for an hour.", candidate_labels: "technology, cooking, travel" },
      ko: { text: "밀가루를 천천히 섞은 다음 한 시간 동안 둔다.", candidate_labels: "기술, 요리, 여행" },
    },
  ],
  embed: [
    {
      en: {
        text: "A man is playing a guitar.",
        others: "Somebody makes music.\nThe train leaves at seven.\nA woman plays the violin.",
      },
      ko: {
        text: "한 남자가 기타를 치고 있다.",
        others: "누군가 음악을 연주한다.\n기차는 일곱 시에 떠난다.\n한 여자가 바이올린을 켠다.",
      },
    },
  ],
  rerank: [
    {
      en: {
        query: "How do bees tell the way?",
        texts: "Rain fell all night on the tin roof.\nBees dance to show where flowers are.\nThe museum opens at nine.",
      },
      ko: {
        query: "벌은 어떻게 길을 알려 주나요?",
        texts: "밤새 양철 지붕에 비가 내렸다.\n벌은 춤을 추어 꽃이 있는 곳을 알린다.\n박물관은 아홉 시에 문을 연다.",
      },
    },
  ],
  score: [
    { en: { text: "The ferry leaves the harbour at seven." }, ko: { text: "배는 일곱 시에 항구를 떠난다." } },
    { en: { text: "Seven the leaves at harbour ferry the." }, ko: { text: "일곱 떠난다 배는 항구를 시에." } },
  ],
};
