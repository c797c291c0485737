"""Words that say nothing of a topic: function words, small talk, words of any chat."""

from __future__ import annotations

ENGLISH = frozenset(
    """
    a about above across actually after again against ago ah aha ain't all almost alone along already alright also although always
    am amazing among an and another any anybody anymore anyone anything anyway anywhere apart are aren't around as aside
    ask asked asking at away awesome awful aww back bad be beautiful became because become been before began begin behind being believe below
    besides best better between beyond big bit both bring brought but by bye came can can't cannot cause certain certainly
    chat check cheers clear close come comes coming completely congrats congratulations cool could couldn't couple
    course crazy cute day days deal definitely did didn't different do does doesn't doing don't done down due during each easy eh either else
    end enjoy enough especially even ever every everybody everyone everything everywhere exactly excited exciting far
    fantastic feel feeling feels felt few finally find fine first for found from full fun further gave get gets getting give given
    gives giving glad go goes going gonna good goodbye got gotta gotten great guess guy guys had hadn't haha half happen
    happened happening happens happy hard has hasn't hate have haven't having he he'd he'll he's hear heard hello help
    helped helpful helps her here here's hers herself hey hi high him himself his hmm hold honestly hope hopefully hoping how how's however huge
    i i'd i'll i'm i've idea if important in incredible indeed inside instead interested interesting into is isn't it it'd
    it'll it's its itself just keep keeps kept kind kinda knew know known knows lately later least left less let let's like liked likes
    listen little lol long look looked looking looks lot lots love loved lovely loves luck made main make makes making man many matter
    may maybe me mean means meant might mind mine minute moment moments more most mostly much must my myself near need needed
    needs neither never new next nice no nobody none nope nor normal not nothing now obviously of off oh ok okay old omg on once one
    ones only onto open or other others our ours ourselves out outside over own part particular past people perfect perhaps photo
    photos pic pics picture pictures place plan planned planning plans please plus possible pretty probably proud put quite rather ready real
    really reason recent recently right said same saw say saying says see seeing seem seemed seems seen several shall she
    she'd she'll she's should shouldn't show showed shows side since small so some somebody somehow someone something sometimes somewhere
    soon sorry sort sound sounds special start started starting stay still stop stopped stuff such super sure sweet take
    taken takes taking talk talked talking tell telling than thank thanks that that'd that'll that's the their theirs them
    themselves then there there'll there's these they they'd they'll they're they've thing things think thinking this those though
    thought thoughts through time times to today together told tomorrow tonight too took totally toward towards tried truly try
    trying turn turned two ugh uh um under unless until up upon us use used using usually very via wait wanna want
    wanted wants was wasn't wat watch way ways we we'd we'll we're we've week weeks weekend welcome well went were weren't what what's
    whatever when where where's whether which while who who's whole whom whose why will wish with within without
    won't wonder wonderful wondering word words work worked works worth would wouldn't wow yay yeah year years yep yes yesterday yet
    you you'd you'll you're you've your yours yourself yourselves yup
    able add added agree aim allow amount appreciate area aspect based bunch call called care case catch change changed choice chance
    cuz decide decided dear detail details effort favorite favourite figure fit focus follow forget forward friend friends gosh
    hang happily heart image imagine impact impressive inspiring join journey keeping last late leave life live lived lives living
    lose lost mention miss month months morning move moved nah night note number okey passion pass piece point post process
    quick reach read remember remind running saying season sec seriously set share shared sharing shot simple single sit situation
    spend spent spot stand step story strong support supportive surely surprise taste team test thx tho tip topic total touch tough true
    type u understand useful vibe vibes view visit wanting week's while wild worry wrong ya years' yo
    three four five six seven eight nine ten
    monday tuesday wednesday thursday friday saturday sunday january february march april june july august september october
    november december
    """.split()
)
"""Lower-case, with straight apostrophes. Single letters and numbers need no entry."""

GREETINGS = frozenset(
    """
    hey hi hello thanks thank wow oh yeah yes no ok okay bye goodbye congrats congratulations sorry please so well and
    good morning dear aww yay sure haha cheers welcome
    """.split()
)
"""Words before a name that show that it is called, not talked about."""

CHINESE = tuple(
    """
    我们 你们 他们 她们 它们 咱们 自己 大家 别人 这个 那个 这些 那些 这里 那里 这儿 那儿 这样 那样 这么 那么 什么 怎么 怎样 为什么 多少 几个 哪个 哪里 哪儿 谁
    可以 可能 能够 应该 需要 想要 想去 要去 打算 准备 觉得 认为 知道 希望 喜欢 告诉 听说 看到 看看 没有 不是 不会 不能 不要 不想 不用 还是 还有 只是 只有 但是 可是 不过
    而且 然后 所以 因为 如果 虽然 或者 以及 已经 正在 曾经 刚刚 刚才 马上 现在 以前 以后 之前 之后 后来 最近 今天 昨天 前天 明天 后天 今年 去年 明年 上周 下周 这周 本周
    周末 上个月 下个月 这个月 时候 时间 一直 一起 一样 一点 一些 一下 一个 一次 有点 有些 非常 特别 真的 真是 其实 当然 大概 大约 差不多 主要 比较 最后 开始 终于 突然
    谢谢 感谢 你好 您好 再见 拜拜 哈哈 好的 好啊 好吧 是的 对啊 不错 厉害 太好了 加油 没事 没关系 对不起 不好意思 早上 晚上 下午 上午 中午 星期 礼拜 工作 上班 下班 东西 事情 问题 情况
    起来 出来 过来 回来 进来 下来 上来 出去 过去 回去 进去 下去 上去 的话 之类 比如 例如 关于 对于 根据 通过 为了 由于 除了 每天 每次 每周
    """.split()
)
"""Words that a run of Chinese is cut at, before the single characters below."""

CHINESE_CHARACTERS = "我你您他她它的了着过得地是在有和跟与及或也都就才又再还很太更最把被让给对从到向往去来要想会能可应该吗呢吧啊呀哦嗯哈嘛么这那哪谁不没别每待做说看用为以而但若则其之所并且只已将曾正刚"
"""Single characters that no candidate holds; cut at when no longer word does."""
